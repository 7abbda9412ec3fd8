"""A run folder of any size, with invented text: what the reader, the terminal and the web page are timed on.

The folder is one that `scope` reads like any other. Text has the lengths of a real run (about a hundred words a
passage, three passages a search) and the word frequencies of one, so that it compresses like one.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from scope_selfplay import __version__
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Comparison,
    Criterion,
    Document,
    Grade,
    Outcome,
    Passage,
    Priority,
    Provenance,
    Reason,
    Role,
    Rollout,
    Rubric,
    Task,
    Turn,
    Verdict,
    numpy_rng_from,
)
from scope_selfplay.config.load import load_config
from scope_selfplay.run.candidate import CandidateRecords
from scope_selfplay.store.card import CARD, stage_card, write_run_card
from scope_selfplay.store.columns import (
    ROWS_PER_GROUP,
    RecordKind,
    arrow_schema,
    bloom_filters,
    table_from_lines,
    write_parquet,
)
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import (
    RunFolder,
    Stage,
    StageFolder,
    StageManifest,
    checksums,
    publish_manifest,
)

VOCABULARY = 20_000
HELD_OUT = 200
TYPES = ("long_form_qa", "summarisation", "planning", "writing")
SYLLABLES = "ba ce di fo gu ha li mo nu pe ra si to vu wen lor tas mir".split()


class Author:
    """Invents text: pieces of one long text whose words are drawn by Zipf's law from one vocabulary."""

    def __init__(self, seed: int, words: int = 1_000_000) -> None:
        self.rng = numpy_rng_from(seed, "corpus of size")
        lengths = self.rng.integers(1, 5, VOCABULARY)
        vocabulary = np.array(["".join(self.rng.choice(SYLLABLES, length)) for length in lengths])
        share = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
        drawn = vocabulary[np.searchsorted(share, self.rng.random(words) * share[-1])]
        self._text = " ".join(drawn.tolist()) + " "
        self._starts = np.concatenate([[0], np.cumsum(np.char.str_len(drawn) + 1)])

    def say(self, words: int) -> str:
        first = self.rng.integers(len(self._starts) - words - 1)
        return self._text[self._starts[first] : self._starts[first + words] - 1]

    def document(self, number: int) -> Document:
        return Document(
            id=f"doc-{number:07d}", title=self.say(3).title(), text=self.say(180), source="invented"
        )

    def passages(self, count: int) -> tuple[Passage, ...]:
        numbers = self.rng.integers(10**6, size=count)
        return tuple(
            Passage(
                id=f"wiki-{number:06d}", title=self.say(3), text=self.say(100), score=float(self.rng.random())
            )
            for number in numbers
        )

    def rollout(self, rollout_id: str, subject: str, checkpoint: str, *, task: str | None = None) -> Rollout:
        """A rollout of the Challenger where a `task` is given, else of the Solver."""
        searches = [self.say(4) for _ in range(self.rng.integers(1, 4))]
        turns = [
            Turn(
                text=f"<think>{thought}</think>\n<search>{query}</search>",
                thinking=thought,
                query=query,
                passages=found,
            )
            for query in searches
            for thought, found in [(self.say(40), self.passages(3))]
        ]
        answer, thought = (None if task else self.say(180)), self.say(60)
        last = f"<task>{task}</task>" if task else f"<answer>{answer}</answer>"
        turns.append(Turn(text=f"<think>{thought}</think>\n{last}", thinking=thought))
        role = Role.CHALLENGER if task else Role.SOLVER
        return Rollout(
            id=rollout_id,
            role=role,
            checkpoint=checkpoint,
            subject_id=subject,
            turns=tuple(turns),
            answer=answer,
            task=task,
        )

    def verdict(self, value: bool) -> Verdict:
        return Verdict(value=value, reasoning=self.say(45), tokens_in=900, tokens_out=120)

    def grade(self, rollout_id: str, chance: float, criteria: int) -> Grade:
        met = self.rng.random(criteria) < chance
        return Grade(
            rollout_id=rollout_id,
            verdicts=tuple(self.verdict(bool(each)) for each in met),
            score=float(met.mean()),
        )

    def rubric(self, task_id: str) -> Rubric:
        criteria = (
            Criterion(text=f"Identifies {self.say(12)}.", priority=list(Priority)[row % 3])
            for row in range(4)
        )
        return Rubric(task_id=task_id, criteria=tuple(criteria))


def make_candidate(author: Author, iteration: int, number: int, rollouts: int) -> CandidateRecords:
    """A third fails a gate; the others are tried `rollouts` times and kept when their mean is in the window."""
    name = f"{iteration}-{number:07d}"
    task = Task(
        id=f"task-{name}",
        text=f"Explain {author.say(45)}.",
        type=TYPES[number % len(TYPES)],
        document_id=f"doc-{number:07d}",
        search_turns=1 + number % 3,
    )
    proposal = author.rollout(f"challenger-{name}", task.document_id, f"C_{iteration}-0a", task=task.text)
    provenance = Provenance(run="sized", iteration=iteration, stage="tasks", document_id=task.document_id)
    failed = number % 3 == 2
    candidate = Candidate(
        id=f"candidate-{name}",
        status=CandidateStatus.REJECTED,
        reason=Reason.refused_by(Gate.SOURCE),
        task=task,
        gates={Gate.ENTITY: author.verdict(True), Gate.SOURCE: author.verdict(not failed)},
        challenger_rollout_id=proposal.id,
        provenance=provenance,
    )
    if failed:
        return CandidateRecords(candidate, (proposal,))
    ids = tuple(f"solver-{name}-{row}" for row in range(rollouts))
    chance = float(author.rng.beta(1.2, 1.2))
    grades = tuple(author.grade(each, chance, 4) for each in ids)
    mean = float(np.mean([grade.score for grade in grades])) if grades else None
    reason = (
        Reason.ACCEPTED
        if mean is None or 0.2 <= mean <= 0.8
        else Reason.TOO_HARD
        if mean < 0.2
        else Reason.TOO_EASY
    )
    status = CandidateStatus.ACCEPTED if reason is Reason.ACCEPTED else CandidateStatus.REJECTED
    verdict = {
        "status": status,
        "reason": reason,
        "mean": mean,
        "rollout_ids": ids,
        "rubric": author.rubric(task.id),
    }
    answers = tuple(author.rollout(each, task.id, f"S_{max(0, iteration - 1)}-0b") for each in ids)
    return CandidateRecords(candidate.model_copy(update=verdict), (proposal, *answers), grades)


def write_corpus(path: Path, *, tasks: int, rollouts: int, seed: int = 0) -> RunFolder:
    """A run of one iteration whose task making tried `tasks` tasks on the Solver, `rollouts` times each."""
    author, folder = Author(seed), _begin(path)
    documents = tasks * 3 // 2
    write_records(folder.corpus, (author.document(number) for number in range(documents)))
    _write_tasks(author, folder.stage(0, Stage.TASKS), 0, HELD_OUT * 3 // 2, 0)
    _finish(folder, 0, Stage.TASKS)
    _write_answers(author, folder, 0)
    _write_training(author, folder, Stage.CHALLENGER, "difficulty")
    _write_tasks(author, folder.stage(1, Stage.TASKS), 1, documents, rollouts)
    _finish(folder, 1, Stage.TASKS)
    _write_training(author, folder, Stage.SOLVER, "rubric")
    _write_answers(author, folder, 1)
    write_run_card(folder, path.name)
    return folder


def write_list(path: Path, *, tasks: int, seed: int = 0) -> RunFolder:
    """A run with candidates only, in parquet only: a few thousand are made and repeated under other ids."""
    author, folder = Author(seed), _begin(path)
    stage = folder.stage(1, Stage.TASKS)
    stage.path.mkdir(parents=True)
    made = [make_candidate(author, 1, number, 4).candidate for number in range(min(tasks, 5000))]
    lines = "".join(each.model_dump_json() + "\n" for each in made)
    table = table_from_lines(lines.encode(), Candidate, stage.candidates)
    schema = arrow_schema(Candidate)
    rows_per_group = 8 * ROWS_PER_GROUP
    filters = bloom_filters(["id"], rows_per_group)
    with pq.ParquetWriter(
        stage.path / "candidates.parquet", schema, compression="zstd", bloom_filter_options=filters
    ) as writer:
        for start in range(0, tasks, len(made)):
            ids = pa.array([f"candidate-1-{start + row:07d}" for row in range(len(made))])
            part = table.set_column(schema.get_field_index("id"), schema.field("id"), ids)
            writer.write_table(part.slice(0, tasks - start), row_group_size=rows_per_group)
    _publish(folder, 1, Stage.TASKS, {RecordKind.CANDIDATES: tasks})
    return folder


def _begin(path: Path) -> RunFolder:
    path.mkdir(parents=True)
    folder = RunFolder(path)
    config = load_config(None, ["name=sized"])
    write_atomic(folder.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    return folder


def _write_tasks(author: Author, stage: StageFolder, iteration: int, documents: int, rollouts: int) -> None:
    stage.path.mkdir(parents=True)
    made = (make_candidate(author, iteration, number, rollouts) for number in range(documents))
    files = (stage.candidates.open("w"), stage.rollouts.open("w"), stage.grades.open("w"))
    for each in made:
        for file, records in zip(files, ([each.candidate], each.rollouts, each.grades), strict=True):
            file.writelines(record.model_dump_json() + "\n" for record in records)
    for file in files:
        file.close()


def _write_answers(author: Author, folder: RunFolder, iteration: int) -> None:
    stage = folder.stage(iteration, Stage.COMPARE)
    stage.path.mkdir(parents=True)
    tasks = [f"task-0-{number:07d}" for number in range(HELD_OUT * 3 // 2) if number % 3 != 2]
    answers = [author.rollout(f"answer-{iteration}-{each}", each, f"S_{iteration}-0b") for each in tasks]
    write_records(stage.rollouts, answers)
    write_records(stage.grades, [author.grade(each.id, 0.4 + 0.1 * iteration, 4) for each in answers])
    matches = (
        Comparison(
            first_id=f"answer-0-{each}",
            second_id=f"answer-{iteration}-{each}",
            outcome=Outcome(*map(float, author.rng.integers(0, 11, 2))),
            verdict=author.verdict(True),
        )
        for each in (tasks if iteration else ())
    )
    write_records(stage.comparisons, matches)
    _finish(folder, iteration, Stage.COMPARE)


def _write_training(author: Author, folder: RunFolder, kind: Stage, part: str) -> None:
    stage = folder.stage(1, kind)
    stage.path.mkdir(parents=True)
    values = np.clip(np.linspace(0.3, 0.6, 20) + author.rng.normal(0, 0.05, 20), 0, 1)
    rows = (
        {"step": step + 1, "reward": float(value), part: float(value)} for step, value in enumerate(values)
    )
    write_records(stage.metrics, rows)
    _finish(folder, 1, kind)


def _finish(folder: RunFolder, iteration: int, stage: Stage) -> None:
    _publish(folder, iteration, stage, write_parquet(folder.stage(iteration, stage).path))


def _publish(folder: RunFolder, iteration: int, stage: Stage, rows: dict[RecordKind, int]) -> None:
    path = folder.stage(iteration, stage).path
    write_atomic(
        path / "judge.json", json.dumps({"calls": sum(rows.values()), "unreadable": 0, "failed": 0}) + "\n"
    )
    write_atomic(path / CARD, stage_card(folder.path.name, iteration, stage, path))
    manifest = StageManifest(
        stage=stage.value,
        iteration=iteration,
        spec_hash="0" * 16,
        outputs=checksums(path),
        rows={f"{kind}.jsonl": count for kind, count in rows.items()},
        version=__version__,
    )
    publish_manifest(path, manifest)
