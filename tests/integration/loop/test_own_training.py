"""The example of docs/training.md runs as it stands there: a policy is trained on a reward of one's own."""

import re
from contextlib import chdir
from pathlib import Path

from scope_selfplay.store.files import read_rows
from tests.integration.loop.seam import same

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")


def test_thirty_lines_train_a_policy_on_a_reward_of_ones_own(random_policy: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(list(filter(None, example.splitlines()))) <= 30
    (tmp_path / "policy").symlink_to(random_policy)
    with chdir(tmp_path):
        exec(compile(example, "docs/training.md", "exec"), {})
    lines = read_rows(tmp_path / "own" / "metrics.jsonl")
    # The policy says more and more of what is paid for, by several standard errors.
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["reward"] > lines[0]["reward"] + 1
    assert not same(tmp_path / "own" / "checkpoint", random_policy)
    assert [name for name in lines[0] if name != "step" and f"`{name}`" not in PAGE] == []
