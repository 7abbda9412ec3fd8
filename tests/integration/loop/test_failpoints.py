"""Task making, killed before single writes that reach the disk: nothing is lost, doubled or changed.

What lies between two of these points only computes, so a kill there leaves the same disk as at the next point.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.faults.counting import FaultCounts
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.integration.loop.test_run import config_of, in_child
from tests.kills import die_before_write

FEW = ("compare.tasks=2", "tasks.max_candidates=10", "tasks.in_flight=3", "corpus.sample=150")


def make_held_out_in_process(policy: Path, root: Path, kill_before: int | None) -> None:
    from scope_selfplay.stages.tasks import make_tasks

    writes = die_before_write(kill_before)
    make_tasks(open_run(config_of(policy, *FEW), root, Progress()), 0)
    (root / "writes").write_text(str(writes()))


def corpus(root: Path) -> dict[str, bytes]:
    stage = RunFolder(root / "tiny").stage(0, Stage.TASKS)
    return {path.name: path.read_bytes() for path in (stage.candidates, stage.rollouts, stage.grades)}


@pytest.mark.fault(1)
def test_a_kill_before_any_write_leaves_a_corpus_that_ends_the_same(
    speaking_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    whole = tmp_path / "whole"
    assert in_child(make_held_out_in_process, speaking_policy, whole, None) == 0
    expected, writes = corpus(whole), int((whole / "writes").read_text())
    assert writes > 20
    # All of them take minutes: SCOPE_EVERY_KILL=1 does so, else every fourth and the last.
    points = range(1, writes + 1) if os.environ.get("SCOPE_EVERY_KILL") else [*range(1, writes, 4), writes]
    for point in points:
        root = tmp_path / f"killed-{point}"
        assert in_child(make_held_out_in_process, speaking_policy, root, point) == -signal.SIGKILL
        assert in_child(make_held_out_in_process, speaking_policy, root, None) == 0
        counts.compare(expected, corpus(root))
        assert corpus(root) == expected, f"killed before write {point}"
    stage = RunFolder(whole / "tiny").stage(0, Stage.TASKS)
    used = [each.provenance.document_id for each in read_records(stage.candidates, Candidate)]
    assert len(used) == len(set(used)) == len(json.loads((stage.path / "documents.json").read_text()))
