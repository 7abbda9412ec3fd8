"""One of several ranks that run the cases of a tier one after the other, as a GPU pod would, on the CPU.

python -m tests.fsdp.rank FOLDER MODULE:FUNCTION ...

Importing the trainer takes seconds, so the same ranks run all cases. What a case returns goes into
`FOLDER/<function>/rank-<number>.json`; a case that raises ends its rank, and the launcher the others.
"""

import importlib
import json
import sys
import time
from pathlib import Path

from scope_selfplay.training.ranks import ranks
from tests.fsdp.place import Place


def main() -> None:
    folder, team = Path(sys.argv[1]), ranks()
    policies = _policies(folder, leads=team.leads)
    for name in sys.argv[2:]:
        module, _, function = name.partition(":")
        place = Place(folder / function, policies / "random", policies / "speaking", team)
        place.folder.mkdir(exist_ok=True)
        found = getattr(importlib.import_module(module), function)(place)
        (place.folder / f"rank-{team.number}.json").write_text(json.dumps(found))


def _policies(folder: Path, *, leads: bool) -> Path:
    from tests.integration.loop.policies import write_random_policy, write_speaking_policy

    written, part = folder / "policies", folder / "part"
    if leads:
        write_random_policy(part / "random")
        write_speaking_policy(part / "speaking")
        part.rename(written)
    while not written.is_dir():
        time.sleep(0.1)
    return written


if __name__ == "__main__":
    main()
