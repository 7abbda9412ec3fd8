"""The quota: in document order, whatever finishes first, and nothing made twice."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.corpus import TaskSource
from scope_selfplay.pipeline import CandidateRecords
from scope_selfplay.schemas import Candidate, CandidateStatus, Document, Provenance, Reason
from scope_selfplay.stages.task_making import by_document, fill_quota, is_settled
from scope_selfplay.store import StageFolder, write_records


def source(number: int) -> TaskSource:
    document = Document(id=f"d{number}", title="t", text="x")
    return TaskSource(document=document, task_type="long_form_qa", search_turns=1)


def candidate(name: str, accepted: bool) -> Candidate:
    return Candidate(
        id=f"c-{name}",
        status=CandidateStatus.ACCEPTED if accepted else CandidateStatus.REJECTED,
        reason=Reason.ACCEPTED if accepted else Reason.TOO_EASY,
        provenance=Provenance(run="r", iteration=1, stage="tasks", document_id=name),
    )


class Maker:
    """Makes candidates after as many turns of the event loop as `delays` says."""

    def __init__(self, fates: Sequence[bool], delays: Sequence[int] = ()) -> None:
        self._fates, self._delays = fates, delays
        self.started: list[str] = []
        self.kept: list[str] = []
        self.cancelled = 0
        self.running = self.most_running = 0

    async def make(self, each: TaskSource) -> CandidateRecords:
        name, row = each.document.id, int(each.document.id[1:])
        self.started.append(name)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(self._delays[row] if self._delays else 0):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return CandidateRecords(candidate(name, self._fates[row]))

    async def fill(
        self, target: int, *, in_flight: int = 4, finished: Mapping[str, Candidate] | None = None
    ) -> list[Candidate]:
        return await fill_quota(
            [source(row) for row in range(len(self._fates))],
            self.make,
            target=target,
            in_flight=in_flight,
            finished=finished or {},
            keep=lambda made: self.kept.append(made.candidate.provenance.document_id),
            report=lambda accepted, tried: None,
        )


def prefix(fates: Sequence[bool], target: int) -> list[str]:
    """What a quota that is filled one after the other keeps."""
    names, accepted = [], 0
    for row, fate in enumerate(fates):
        if accepted == target:
            break
        names.append(f"c-d{row}")
        accepted += fate
    return names


@given(st.data())
def test_what_is_kept_follows_from_the_documents_and_not_from_who_finishes_first(data: st.DataObject) -> None:
    fates = data.draw(st.lists(st.booleans(), max_size=25))
    delays = data.draw(st.lists(st.integers(0, 6), min_size=len(fates), max_size=len(fates)))
    target, in_flight = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
    maker = Maker(fates, delays)
    kept = asyncio.run(maker.fill(target, in_flight=in_flight))
    assert [each.id for each in kept] == prefix(fates, target)
    assert maker.most_running <= in_flight
    assert maker.running == 0


@given(st.integers(0, 1000), st.integers(1, 10))
def test_a_resumed_quota_is_the_same_and_makes_nothing_twice(seed: int, target: int) -> None:
    rng = random.Random(seed)
    fates = [rng.random() < 0.4 for _ in range(30)]
    delays = [rng.randrange(6) for _ in fates]
    # A kill leaves any set of finished documents behind, not only the first ones.
    done = {f"d{row}": candidate(f"d{row}", fates[row]) for row in rng.sample(range(30), rng.randrange(20))}
    maker = Maker(fates, delays)
    kept = asyncio.run(maker.fill(target, finished=done))
    assert [each.id for each in kept] == prefix(fates, target)
    assert not set(maker.started) & set(done)
    assert len(maker.kept) == len(set(maker.kept))


async def test_a_quota_that_was_full_stays_as_it_was() -> None:
    maker = Maker([True] * 20)
    done = {f"d{row}": candidate(f"d{row}", True) for row in range(3)}
    assert await maker.fill(3, finished=done, in_flight=4) == list(done.values())
    # A few may have been begun before the last finished one was looked at.
    assert len(maker.kept) <= 4


async def test_documents_that_run_out_end_the_quota() -> None:
    kept = await Maker([True, False, True]).fill(10)
    assert [each.status is CandidateStatus.ACCEPTED for each in kept] == [True, False, True]
    assert await Maker([]).fill(3) == []


async def test_what_runs_behind_the_last_accepted_is_cancelled() -> None:
    maker = Maker([True] * 12, [0] + [50] * 11)
    assert len(await maker.fill(1, in_flight=12)) == 1
    assert maker.cancelled >= 1 and maker.running == 0 and maker.kept == ["d0"]


async def test_a_fault_ends_the_quota_and_leaves_nothing_running() -> None:
    maker = Maker([True] * 6, [0, 30, 30, 30, 30, 30])

    async def broken(each: TaskSource) -> CandidateRecords:
        if each.document.id == "d0":
            raise OSError("disk full")
        return await maker.make(each)

    with pytest.raises(OSError, match="disk full"):
        await fill_quota(
            [source(row) for row in range(6)],
            broken,
            target=3,
            in_flight=6,
            finished={},
            keep=lambda made: None,
            report=lambda accepted, tried: None,
        )
    assert maker.running == 0


async def test_progress_is_reported_with_every_document() -> None:
    seen: list[tuple[int, int]] = []
    maker = Maker([True, False, True])
    await fill_quota(
        [source(row) for row in range(3)],
        maker.make,
        target=2,
        in_flight=2,
        finished={},
        keep=lambda made: None,
        report=lambda accepted, tried: seen.append((accepted, tried)),
    )
    assert seen == [(1, 1), (1, 2), (2, 3)]


def test_what_a_fault_left_unresolved_is_made_again_and_its_newest_record_counts(tmp_path: Path) -> None:
    fault = {"status": CandidateStatus.UNRESOLVED, "reason": Reason.JUDGE_FAILED}

    def left_open(name: str, mean: float) -> Candidate:
        return candidate(name, True).model_copy(update=fault | {"mean": mean})

    # Two starts; d0 and d1 were open in the first, d3 was settled twice.
    starts = [
        [left_open("d0", 0.1), left_open("d1", 0.1), candidate("d2", False), candidate("d3", True)],
        [candidate("d0", True), left_open("d1", 0.2), candidate("d3", False)],
    ]
    folders = [StageFolder(tmp_path / str(row)) for row in range(2)]
    for folder, records in zip(folders, starts, strict=True):
        folder.path.mkdir()
        write_records(folder.candidates, records)
    found = by_document(folders)
    assert found == {
        "d0": candidate("d0", True),
        "d1": left_open("d1", 0.2),
        "d2": candidate("d2", False),
        "d3": candidate("d3", True),
    }
    assert [name for name, each in found.items() if not is_settled(each)] == ["d1"]
