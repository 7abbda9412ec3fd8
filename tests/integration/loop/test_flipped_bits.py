"""One bit of a finished run is flipped at a time: it is refused by name, or changes nothing."""

import json
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.base.errors import ScopeError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.driver.local import run_all
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.folder import RunFolder, Stage
from tests.integration.loop.served_runs import records
from tests.integration.loop.test_run import config_of, in_child

# Of a run that has ended. Corpus and index are compared when a search is opened.
UNREAD = {
    "summary.json",
    "README.md",
    "corpus.jsonl",
    "index.json",
    *(f".{stage.value}.lock" for stage in Stage),
}

# Later stages list the hash of a manifest; of the last one, time, attempt, rows and version are notes.
LAST_MANIFEST = "tiny/iteration-01/compare/manifest.json"

pytestmark = pytest.mark.timeout(1800)


def flip_in_process(policy: Path, root: Path, count: int, said: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    expected, rng, found = records(root), Random(0), []
    order = rng.sample(files, len(files))
    contents = {path: path.read_bytes() for path in files}
    for number in range(count):
        # Every file comes up before any comes up again.
        file = order[number % len(order)]
        place, bit = rng.randrange(len(contents[file])), rng.randrange(8)
        damaged = bytearray(contents[file])
        damaged[place] ^= 1 << bit
        file.write_bytes(damaged)
        try:
            run_all(open_run(config_of(policy), root, Progress()))
            found.append(("same" if records(root) == expected else "wrong", str(file.relative_to(root)), ""))
        except ScopeError as error:
            found.append(("refused", str(file.relative_to(root)), str(error)))
        except Exception as error:  # noqa: BLE001 - a traceback is what must not be
            found.append(("traceback", str(file.relative_to(root)), repr(error)))
        for path, content in contents.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
    said.write_text(json.dumps(found))


@pytest.mark.fault(8)
def test_a_flipped_bit_is_refused_or_changes_nothing(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    shutil.copytree(finished.path, tmp_path / "runs" / "tiny", symlinks=True)
    said = tmp_path / "said"
    assert in_child(flip_in_process, speaking_policy, tmp_path / "runs", points(30, 100), said) == 0
    found = json.loads(said.read_text())
    endings = Counter(ending for ending, _, _ in found)
    counts.add(tried=len(found), survived=endings["refused"] + endings["same"], refused=endings["refused"])
    counts.add(lost=0, duplicated=0, wrong=endings["wrong"])
    bad = [each for each in found if each[0] not in ("refused", "same")]
    assert not bad, bad
    # What a manifest lists is refused; notes that nobody reads again, and those of a lock, change nothing.
    same = {file for ending, file, _ in found if ending == "same"}
    assert {Path(file).name for file in same - {LAST_MANIFEST}} <= UNREAD
    counts.check()
