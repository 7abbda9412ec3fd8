"""The notebook of docs/look-up/api.md, in an event loop as Jupyter has one; and its run, moved away from all that its
settings name.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from scope_selfplay import Run
from scope_selfplay.base.errors import RecordError, UserError
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.store.folder import RunFolder
from tests.commands import ran
from tests.doc_commands import REPOSITORY, environment
from tests.integration.loop.test_run import config_of, records


async def test_the_notebook_of_the_page_runs_and_its_run_goes_on_elsewhere(
    speaking_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    shutil.copytree(speaking_policy, "policy")
    shutil.copytree(pack_path("embedded"), "packs/mine", ignore=shutil.ignore_patterns("kustomization.yaml"))
    small = ("iterations=1", "compare.stop=never", "domain=packs/mine")
    settings = config_of(Path("policy"), *small).model_dump(mode="json")
    Path("run.yaml").write_text(yaml.safe_dump(settings))
    asked = (f'{{"question": "Who founded {each}?", "answers": ["Merrin"]}}\n' for each in range(9))
    Path("questions.jsonl").write_text("".join(asked))
    (page,) = re.findall(
        r"```python\n(.*?)```", (REPOSITORY / "docs/look-up/api.md").read_text(encoding="utf-8"), re.DOTALL
    )
    before, after = page.split("\n\nrun.resume")
    cells: dict[str, Any] = {}
    exec(before, cells)
    run: Run = cells["run"]
    shutil.copytree(run.path, "elsewhere/b", symlinks=True)
    Path("packs").rename("of others")
    exec(f"run.resume{after}", cells)
    assert list(cells["result"].checkpoints) == ["tiny:S_2", "tiny:S_0"]

    kinds = ("tasks", "rejected", "rollouts", "grades", "metrics")
    frames = {kind: run.frame(kind) for kind in kinds}
    assert all(len(frame) == len(run.records(kind)) > 0 for kind, frame in frames.items())
    assert set(frames["metrics"].iteration) == {1, 2} and isinstance(frames["tasks"], pd.DataFrame)
    assert set(frames["tasks"]["task.text"]) == {each.task.text for each in run.records("tasks")}
    assert {each.provenance.iteration for each in run.records("rejected", iteration=1)} == {1}
    with pytest.raises(UserError, match="expected one of tasks, rejected"):
        run.records("task")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="no such folder"):
        Run("runs/none")
    with pytest.raises(UserError, match="found 'many'"):
        run.resume(settings={"iterations": "many"})

    # The folder, its prompt pack and its model are not where its settings say, seen from here.
    again = [*forked, "scope", "continue", "b", "--iterations=2"]
    done = ran(again, cwd=tmp_path / "elsewhere", env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    Path("moved").mkdir()
    stayed, moved = records(tmp_path / "runs"), Path("elsewhere/b").rename("moved/tiny")
    assert records(moved.absolute().parent) == stayed
    assert RunFolder(moved).base.readlink() == tmp_path / "policy"
