"""Task making: the quota in document order, whatever finishes first and however many workers there are."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.errors import ConfigError, OutsideError, RecordError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.text import opening
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Document,
    Grade,
    Provenance,
    Reason,
    Role,
    Rollout,
    Task,
)
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.read import documents_for
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.plan.preflight import pool_of
from scope_selfplay.run.begin import open_run, run_documents
from scope_selfplay.run.candidate import CandidateRecords
from scope_selfplay.stages.tasks import (
    Shard,
    SharedProgress,
    collect_tasks,
    fill_quota,
    is_done,
    keep_records,
    most_alike,
    new_folder,
    parse_shard,
    share_folders,
    up_to_quota,
    write_candidates,
)
from scope_selfplay.stages.work import stage_sources
from scope_selfplay.store.files import read_records, write_records
from scope_selfplay.store.folder import Stage, StageFolder
from tests.models import write_model
from tests.unit.prompts.packs import write_pack

PAGES = {
    "en/guide/pairing.md": ("pairing", "pairing"),
    "de/guide/pairing.md": ("pairing", "koppeln"),
    "guide/pairing.zh-CN.md": ("pairing", "peidui"),
    "en/guide/reset.md": ("reset", "reset"),
    "en/guide/copy.md": ("reset", "reset"),
    "en/faq.md": ("faq", "faq"),
    "go/faq.md": ("go", "goroutines"),
}
"""Page, as a person sees it, and words of a file."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hold_out", ["page", "document"])
def test_no_task_is_written_from_a_page_of_a_held_out_one_a_translation_or_a_copy(
    tmp_path: Path, seed: int, hold_out: str
) -> None:
    for name, (_, word) in PAGES.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        sections = (f"## {word} {n}\n\n" + " ".join(f"{word}{n}x{m}" for m in range(20)) for n in range(6))
        (tmp_path / "docs" / name).write_text("\n\n".join(sections))
    (tmp_path / "docs" / "rows.csv").write_text("id,text\n" + "".join(f"{n},row {n}\n" for n in range(6)))
    domain = "title: Pages\nextends: embedded\ncorpus_reader: markdown_sections\n"
    paths = [f"domain={write_pack(tmp_path / 'pages', domain=domain)}", f"corpus.path={tmp_path / 'docs'}"]
    sizes = ["challenger.max_prompt=4096", "compare.tasks=5", f"model.path={write_model(tmp_path / 'model')}"]
    how = ["name=r", f"seed={seed}", f"corpus.hold_out={hold_out}", "corpus.duplicates=keep"]
    share = ["tasks.target=100", "tasks.largest_share=.29"]
    run = open_run(load_config(None, [*paths, *sizes, *how, *share]), tmp_path / "runs", Progress())
    # Of a corpus of its own for held-out tasks.
    apart = run.config.corpus.model_copy(update={"held_out_path": str(tmp_path / "docs" / "de")})
    read = run_documents(run.config.model_copy(update={"corpus": apart}), run.pack)
    names = {each.id.partition("#")[0] for each in documents_for(read, held_out=False)}
    assert ("en/guide/pairing.md" in names) is (hold_out == "document") and "en/guide/reset.md" in names
    folder = run.folder.stage(0, Stage.TASKS)
    folder.path.mkdir(parents=True)
    tried = [each.document.id for each in stage_sources(run, 0, Stage.TASKS, 20)]
    for row, name in enumerate(tried):
        keep_records(
            folder,
            CandidateRecords(
                candidate(row, row > 0, "ABCDEFGHIJKLMNOPQRST"[row], name), (writing(row, "c"),)
            ),
        )
    collect_tasks(run, 0)
    assert (most_alike(run, 0), most_alike(run, 1)) == (1, 29)
    left = {each.document.id for each in stage_sources(run, 1, Stage.CHALLENGER, 99, or_fewer=True)}
    everything, first = {each.id for each in run.documents}, tried[0]
    if hold_out == "document":
        assert left == everything - {*tried[:6]} and pool_of(run.documents, run.config).kin == 0
        return
    pages = {_page(name) for name in tried[1:6]}
    assert len(pages) < 5 and len(left) >= 12
    assert left == {each for each in everything if _page(each) not in pages and each != first}
    assert pool_of(run.documents, run.config).kin > 0


def _page(name: str) -> str:
    path, _, part = name.partition("#")
    return f"row {part}" if path == "rows.csv" else PAGES[path][0]


def source(row: int) -> TaskSource:
    document = Document(id=f"d{row}", title="t", text="x")
    return TaskSource(document=document, task_type="long_form_qa", search_turns=1)


def candidate(row: int, accepted: bool, kind: str = "Explain", document: str = "") -> Candidate:
    own, text = document or f"d{row}", f"{kind} how Halden P{row} is paired."
    return Candidate(
        task=Task(id=f"t{row}", text=text, type="long_form_qa", document_id=own),
        id=f"c{row}",
        status=CandidateStatus.ACCEPTED if accepted else CandidateStatus.REJECTED,
        reason=Reason.ACCEPTED if accepted else Reason.TOO_EASY,
        challenger_rollout_id=f"r{row}",
        provenance=Provenance(run="r", iteration=1, stage="tasks", document_id=own),
    )


def writing(row: int, checkpoint: str) -> Rollout:
    own = {"id": f"r{row}", "checkpoint": checkpoint, "subject_id": f"d{row}"}
    return Rollout(role=Role.CHALLENGER, turns=(), **own)


class Team:
    """Workers that share a folder and differ in speed; a worker may die at one of its documents."""

    kinds, most_alike = ["Explain"] * 400, 99

    def __init__(
        self, folder: StageFolder, fates: Sequence[bool], target: int, delays: Sequence[int]
    ) -> None:
        self.folder, self.fates, self.target, self.delays = folder, fates, target, delays
        self.positions = {f"d{row}": row for row in range(len(fates))}
        self.made: list[int] = []
        self.running = self.cancelled = 0

    async def work(self, shard: Shard, *, die_at: int | None = None) -> None:
        own = new_folder(self.folder, shard)
        shared = SharedProgress(self.folder, self.positions, self.most_alike)
        shared.refresh()

        async def make(each: TaskSource) -> CandidateRecords:
            row = self.positions[each.document.id]
            self.running += 1
            try:
                for _ in range(self.delays[row]):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1
            if row == die_at:
                raise ConnectionError("the worker was killed")
            grades = (Grade(rollout_id=f"r{row}", score=0.5, verdicts=()),)
            made = candidate(row, self.fates[row], self.kinds[row])
            return CandidateRecords(made, (writing(row, str(shard)),), grades)

        def keep(made: CandidateRecords) -> None:
            keep_records(own, made)
            self.made.append(self.positions[made.candidate.provenance.document_id])
            shared.refresh()

        mine = [row for row in range(len(self.fates)) if row % shard.workers == shard.number]
        await fill_quota(
            [source(row) for row in mine if f"d{row}" not in shared.finished],
            make,
            in_flight=lambda: 3,
            is_needed=lambda each: shared.accepted_before(self.positions[each.document.id]) < self.target,
            keep=keep,
            poll=0.001,
        )

    def collect(self) -> list[str]:
        documents = list(self.positions)
        found = up_to_quota(documents, share_folders(self.folder), target=self.target)
        return [each.id for each, _ in found]


def alone(fates: Sequence[bool], target: int) -> list[str]:
    """What a quota that one worker fills keeps."""
    return [f"c{row}" for row in range(len(fates)) if sum(fates[:row]) < target]


@pytest.mark.integration
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_workers_keep_what_one_worker_alone_would_keep(data: st.DataObject) -> None:
    fates = data.draw(st.lists(st.booleans(), min_size=1, max_size=16))
    delays = data.draw(st.lists(st.integers(0, 5), min_size=len(fates), max_size=len(fates)))
    target, workers = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    dead = data.draw(st.none() | st.integers(0, len(fates) - 1))
    with tempfile.TemporaryDirectory() as root:
        team = Team(StageFolder(Path(root)), fates, target, delays)

        async def first() -> None:
            shards = [Shard(index, workers) for index in range(workers)]
            await asyncio.gather(*(team.work(each, die_at=dead) for each in shards), return_exceptions=True)

        async def again() -> None:
            # The dead one comes back as another number of workers: what is finished is not made again.
            for index in range(workers + 1):
                await team.work(Shard(index, workers + 1))

        asyncio.run(first())
        if dead is not None:
            asyncio.run(again())
        assert team.collect() == alone(fates, target)
        assert len(team.made) == len(set(team.made))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_tasks_that_begin_alike_fill_no_more_than_their_share(tmp_path: Path, workers: int) -> None:
    assert opening("Explain, with 3 examples, how Halden H2 is paired.") == "explain with examples how"
    team = Team(StageFolder(tmp_path), [True] * 14, 5, [9, 0] * 7)
    team.kinds, team.most_alike = "E E E E E Compare E E E E List E Name E".split(), 2

    async def work() -> None:
        await asyncio.gather(*(team.work(Shard(number, workers)) for number in range(workers)))

    asyncio.run(work())
    found = up_to_quota(list(team.positions), share_folders(team.folder), target=5, most_alike=2)
    accepted = [each.id for each, _ in found if each.status is CandidateStatus.ACCEPTED]
    assert accepted == ["c0", "c1", "c5", "c10", "c12"] and len(found) == 13
    assert {each.reason for each, _ in found} == {Reason.ACCEPTED, Reason.TOO_ALIKE}


def test_of_tasks_that_ask_the_same_the_first_is_accepted(tmp_path: Path) -> None:
    folder, (first, *others) = StageFolder(tmp_path), [candidate(row, True) for row in range(3)]
    assert first.task is not None
    same = first.task.model_copy(update={"text": first.task.text.replace("Halden", "HÁLDEN ")})
    made = [
        first.model_copy(update={"task": same}),
        others[0].model_copy(update={"task": first.task}),
        others[1],
    ]
    documents = {each.provenance.document_id: row for row, each in enumerate(made)}
    progress = SharedProgress(folder, documents)
    for each in reversed(made):
        keep_records(folder, CandidateRecords(each))
    progress.refresh()
    found = up_to_quota(list(documents), [folder], target=3)
    assert [each.reason for each, _ in found] == [Reason.ACCEPTED, Reason.DUPLICATE, Reason.ACCEPTED]
    assert progress.accepted == 2 and [progress.accepted_before(row) for row in (1, 2)] == [1, 1]


def test_a_worker_stops_when_the_others_have_filled_the_quota(tmp_path: Path) -> None:
    team = Team(StageFolder(tmp_path), [True] * 400, 10, [0] * 400)

    async def both() -> None:
        await asyncio.gather(team.work(Shard(0, 2)), team.work(Shard(1, 2)))

    asyncio.run(both())
    assert len(team.collect()) == 10
    assert len(team.made) <= 10 + 2 * 3


def test_two_pods_of_one_worker_leave_one_candidate_with_its_own_rollouts(tmp_path: Path) -> None:
    folder = StageFolder(tmp_path)
    for checkpoint in ("first", "second"):
        made = CandidateRecords(candidate(0, True), (writing(0, checkpoint),))
        keep_records(new_folder(folder, Shard(0, 1)), made)
    folders = share_folders(folder)
    write_candidates(folder, up_to_quota(["d0"], folders, target=1))
    assert [each.checkpoint for each in read_records(folder.rollouts, Rollout)] == ["first"]


def test_a_line_that_is_being_written_is_left_for_the_next_refresh(tmp_path: Path) -> None:
    folder = StageFolder(tmp_path)
    own = new_folder(folder, Shard(0, 2))
    line = candidate(0, True).model_dump_json() + "\n"
    for file in (own.rollouts, own.grades):
        file.touch()
    own.candidates.write_text(line[:40])
    shared = SharedProgress(folder, {"d0": 0, "d1": 1})
    shared.refresh()
    assert shared.accepted_before(1) == 0
    own.candidates.write_text(line)
    shared.refresh()
    assert shared.accepted_before(1) == 1 and shared.accepted_before(0) == 0
    own.candidates.write_text(line + "{}\n")
    with pytest.raises(RecordError, match="damaged line"):
        shared.refresh()


def test_a_share_without_its_records_is_made_again(tmp_path: Path) -> None:
    """As an error about a damaged file advises: the file is removed, and the same commands go on."""
    team = Team(StageFolder(tmp_path), [True] * 6, 3, [0] * 6)
    for number in range(2):
        asyncio.run(team.work(Shard(number, 2)))
    done = tmp_path / "worker.done"
    done.write_text(json.dumps({"folders": [each.path.name for each in share_folders(team.folder)[1:]]}))
    assert is_done(team.folder, done)
    share_folders(team.folder)[2].rollouts.unlink()
    assert not is_done(team.folder, done)
    with pytest.raises(OutsideError, match=r"document 1 \(d1\).*--shard I/N"):
        team.collect()
    asyncio.run(team.work(Shard(1, 2)))
    assert team.collect() == ["c0", "c1", "c2"]
    folders, documents = share_folders(team.folder), [f"d{row}" for row in range(3)]
    write_candidates(team.folder, up_to_quota(documents, folders, target=3))
    assert [each.id for each in read_records(team.folder.rollouts, Rollout)] == ["r0", "r1", "r2"]
    assert [each.rollout_id for each in read_records(team.folder.grades, Grade)] == ["r0", "r1", "r2"]


@pytest.mark.parametrize("text", ["", "4/4", "-1/4", "1/0", "a/b", "1/4/2"])
def test_an_invalid_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected I/N"):
        parse_shard(text)


async def test_what_runs_behind_the_last_accepted_or_a_fault_is_cancelled(tmp_path: Path) -> None:
    team = Team(StageFolder(tmp_path / "filled"), [True] * 12, 1, [0] + [50] * 11)
    await team.work(Shard())
    assert team.made == [0] and team.cancelled >= 1 and team.running == 0
    team = Team(StageFolder(tmp_path / "fault"), [True] * 6, 3, [0] + [30] * 5)
    with pytest.raises(ConnectionError):
        await team.work(Shard(), die_at=0)
    assert team.running == 0 and team.made == []


def test_what_a_fault_left_unresolved_is_made_again_and_its_newest_record_counts(tmp_path: Path) -> None:
    fault = {"status": CandidateStatus.UNRESOLVED, "reason": Reason.JUDGE_FAILED}

    def left_open(row: int, mean: float) -> Candidate:
        return candidate(row, True).model_copy(update=fault | {"mean": mean})

    # Two starts; d0 and d1 were open in the first, d3 was settled twice.
    starts = [
        [left_open(0, 0.1), left_open(1, 0.1), candidate(2, False), candidate(3, True)],
        [candidate(0, True), left_open(1, 0.2), candidate(3, False)],
    ]
    folders = [StageFolder(tmp_path / str(row)) for row in range(2)]
    for folder, records in zip(folders, starts, strict=True):
        folder.path.mkdir()
        write_records(folder.candidates, records)
    found = up_to_quota([f"d{row}" for row in range(4)], folders, target=4)
    newest = [candidate(0, True), left_open(1, 0.2), candidate(2, False), candidate(3, True)]
    assert [each for each, _ in found] == newest
