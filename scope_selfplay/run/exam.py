"""When a run's judge is examined, in which questions, and what follows: before it begins, or by whoever opens it first.

RUN/exam/exam.json        kept for good: its thresholds are part of every verdict of the run
ROOT/.NAME.exam/          the same before there is a run: what preflight or a refused start has asked is not lost
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import ConfigError, RunMismatchError
from scope_selfplay.base.text import one_line
from scope_selfplay.base.values import Criterion, Document, Rollout, Task, content_id, seed_from
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.run import RunConfig
from scope_selfplay.designs.design import ComparisonDesign
from scope_selfplay.designs.per_rollout import PointwiseDesign
from scope_selfplay.designs.step import open_design
from scope_selfplay.judge.cases import Canary, CanaryCase, cases_of, own_cases
from scope_selfplay.judge.checks import PASSES, CanaryKind, Exam, read_exam
from scope_selfplay.judge.exam import changes_since, examine
from scope_selfplay.judge.model import ModelJudge, open_model_judge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    Style,
    question_of,
)
from scope_selfplay.judge.questions import RANDOM_MODEL, has_guard
from scope_selfplay.net.loops import at_once
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.store.files import publish_once, write_atomic
from scope_selfplay.store.folder import MANIFEST, RunFolder
from scope_selfplay.store.query import HumanFolder, HumanVerdict
from scope_selfplay.store.ratings import read_fork

A_QUESTION = 40
"""Judgements of each question before a run."""


def questions_of(config: RunConfig, pack: Pack) -> list[Question[Any]]:
    """An example of each question that the run will ask its judge."""
    gates = pack.domain.gates if config.judge.gates is None else config.judge.gates
    makes_tasks = config.solver.tasks is None or config.held_out is None
    design = open_design(config.solver.reward, config.solver, len)
    roles = [*map(PromptRole.of_gate, gates), PromptRole.RUBRIC] if makes_tasks else []
    roles += [PromptRole.RUBRIC_DIMENSIONS] if getattr(design.settings, "rubrics", "") == "query" else []
    roles += [PromptRole.GRADE, *([PromptRole.GUARD] if has_guard(config.judge, pack) else [])]
    match design.name:
        case "implicit" | "explicit":
            roles.append(PromptRole(f"score_{design.name}"))
        case "group_tournament" | "pairwise":
            roles.append(PromptRole.SELECT)
    if isinstance(design, PointwiseDesign):
        roles.append(PromptRole(f"score_{design.settings.prompt}"))
    task, answer = Task(id="exam", text="", type="", document_id=""), Rollout.of_answer("")
    document = Document(id="exam", title="", text="")
    asked = [_example(role, task, document, answer) for role in roles if role in pack.roles]
    styles = [design.style] if isinstance(design, ComparisonDesign) and design.style is not None else []
    # Checkpoints are compared by whole scores, whatever the design does; a run of S_0 alone compares nothing.
    styles = [*styles, Style.SCORES] if config.stop_after != 0 else []
    pairs = [PairQuestion(task, answer, answer, style=style) for style in dict.fromkeys(styles)]
    return asked + [each for each in pairs if each.role in pack.roles]


@dataclass(frozen=True)
class RunExam:
    """The exam of a config's judge, held in the `folder` of a run or of none; `sample`: judgements of each question."""

    config: RunConfig
    pack: Pack
    documents: Sequence[Document]
    folder: RunFolder
    say: Callable[[str], None]
    sample: int = A_QUESTION

    def hold(self, judge: ModelJudge) -> Exam:
        """The folder's exam, of which a few items are asked again. Held where there is none, and anew until a stage is
        finished: of other cases or another judge, or after one that stopped the run, since what was wrong may be
        mended.

        Raises RunMismatchError for another judge of a run that has finished a stage.
        """
        folder, settings, seed, sample = self.folder, self.config.judge, self.config.seed, self.sample
        if (kept := read_exam(folder)) is not None:
            changed = _changed(kept, judge, folder, settings.retries)
            if _has_judged(folder):
                if changed:
                    raise RunMismatchError(changed)
                return kept
        questions, file = questions_of(self.config, self.pack), settings.canaries.file
        own, marks = own_cases(file), marks_of(Path(file)) if file and Path(file).is_dir() else []
        said = [
            *(each.model_dump_json() for each in own),
            *(f"{each.question} {each.expected}" for each in marks),
        ]
        texts = (part for each in self.documents for part in (each.id, each.text))
        cases = content_id("cases", *(each.name for each in questions), sample, seed, *said, *texts)
        # A run that goes on all the same goes on with the thresholds that it has.
        can_fail = settings.exam == "report" and folder.config.exists()
        if kept is not None and kept.cases == cases and not changed and (can_fail or not kept.failed):
            return kept
        self.say(
            f"the judge is examined in {len(questions)} questions, at most {sample} judgements each (judge.exam)"
        )
        asked = partial(examine, judge, questions, cases_of(None, self.documents), sample=sample, seed=seed)
        # What was answered then is paid for and may be of another judge.
        again = seed_from(kept.model_dump_json()) if kept else 0
        exam = at_once(asked(documents=self.documents, own=own, marks=marks, again=again))
        exam = exam.model_copy(update={"cases": cases})
        place, whole = folder.exam / "exam.json", folder.exam / f".exam.{os.getpid()}"
        folder.exam.mkdir(parents=True, exist_ok=True)
        write_atomic(whole, exam.model_dump_json(indent=1) + "\n")
        # Of several processes that open a run at the same time, one exam counts.
        if kept is not None and read_exam(folder) == kept:
            place.unlink(missing_ok=True)
        publish_once(whole, place)
        whole.unlink(missing_ok=True)
        return read_exam(folder) or exam

    def thresholds(self, judge: ModelJudge) -> dict[str, float]:
        """What a run's judge is calibrated with, after its exam; a run that has finished a stage without one goes on
        so.
        """
        has_judged = _has_judged(self.folder) and read_fork(self.folder) is None
        kept, settings = read_exam(self.folder), self.config.judge
        if kept is None and (settings.exam == "none" or has_judged or _is_random(judge)):
            return {}
        exam = self.hold(judge)
        # A warning was given by whoever held it: preflight, or an earlier stage.
        check_exam(exam, settings, (lambda text: None) if exam == kept else self.say)
        return exam.thresholds

    def before_a_run(self) -> Exam | None:
        """In a folder that is no run's; none of a rehearsal's. Raises ConfigError, JudgeError."""
        found: list[Exam] = []

        def examined(judge: ModelJudge) -> dict[str, float]:
            if not _is_random(judge):
                found.append(self.hold(judge))
            return {}

        place, seed = self.folder.path, self.config.seed
        open_model_judge(
            self.config.judge, self.pack, seed=seed, folder=place, say=self.say, examined=examined
        )
        return found[0] if found else None


def _changed(kept: Exam, judge: ModelJudge, folder: RunFolder, retries: int) -> str:
    """How this judge is another one than the one that was examined; "" where it is not."""
    if kept.judge != judge.uncalibrated:
        return (
            f"{folder.exam}: is the exam of the judge {kept.judge}, found {judge.uncalibrated} (model, weights, "
            "template, prompts or settings differ); serve that judge, or use another --name"
        )
    changes = at_once(changes_since(kept, judge, retries=retries))
    listed = "; ".join(f"{name}: {change}" for name, change in changes.items())
    return listed and (
        f"{folder.exam}: another judge answers under the name of the one that was examined ({listed}); serve "
        "that one with its template again, or this one under a name of its own (judge.endpoint.model) to "
        "another --name or in a fork of the run"
    )


def marks_of(run: Path) -> list[Canary]:
    """What people have said of a run, where none said otherwise. Raises ConfigError without any, and RecordError."""
    from scope_selfplay.store.reader import RunReader

    said: dict[tuple[str, ...], list[HumanVerdict]] = {}
    found = []
    with RunReader(run) as reader:
        for mark in HumanFolder(reader.folder).verdicts():
            if mark.value is not None:
                said.setdefault(mark.question, []).append(mark)
        for mark, *others in said.values():
            record = reader.task(mark.task_id)
            task, rubric, value = record.candidate.task, record.candidate.rubric, bool(mark.value)
            if task is None or any(each.value is not value for each in others):
                continue
            if mark.gate is not None:
                question: Question[bool] = GateQuestion(task, mark.gate, record.document)
            else:
                assert rubric is not None and mark.criterion is not None
                answers = {each.rollout.id: each.rollout.answer or "" for each in reader.attempts_on(task.id)}
                question = GradeQuestion(task, rubric.criteria[mark.criterion], answers[mark.rollout_id])
            case = CanaryCase(task=task.text, criterion="", right="", wrong="")
            found.append(Canary(question, CanaryKind.RIGHT if value else CanaryKind.WRONG, case, "", value))
    if not found:
        raise ConfigError(f"judge.canaries.file: {run} holds no marks; `scope play judge {run}` makes some")
    return found


def what_fails(exam: Exam) -> str:
    """In one line, what a judge cannot answer and what helps; "" for one that can judge."""
    if not exam.failed:
        return ""
    faults: dict[str, list[str]] = {}
    for name, fault in exam.failed.items():
        faults.setdefault(fault, []).append(name)
    listed = "; ".join(f"{', '.join(names)}: {fault}" for fault, names in faults.items())
    unread = next(
        (each.unread for name, each in exam.questions.items() if name in exam.failed and each.unread), ""
    )
    words = f" (such as: {one_line(unread[:120])})" if unread else ""
    return (
        f"the judge cannot answer {listed}, at least {PASSES} wanted{words}; try another pack (as small), another "
        "form (judge.verdict), a larger model or fewer questions (judge.gates); judge.exam: report goes on all the same"
    )


def what_is_in_doubt(exam: Exam) -> str:
    listed = "; ".join(f"{name}: {fault}" for name, fault in exam.doubtful.items())
    return f"{listed}; {PASSES} would do, and `scope judge exam` asks more" if listed else ""


def check_exam(exam: Exam, config: JudgeConfig, say: Callable[[str], None]) -> None:
    """Says what is in doubt. Raises ConfigError for a judge that cannot judge, unless only a report is wanted."""
    fails, doubts = what_fails(exam), what_is_in_doubt(exam)
    if fails and config.exam == "stop":
        raise ConfigError(fails)
    for text in (fails, doubts):
        if text:
            say(f"WARNING: the judge's exam: {text}")


def _has_judged(folder: RunFolder) -> bool:
    """Whether a stage is finished, by verdicts that stay."""
    return next(folder.path.glob(f"iteration-*/*/{MANIFEST}"), None) is not None


def waiting_folder(root: Path, name: str) -> RunFolder:
    return RunFolder(root / f".{name}.exam")


def exam_before(
    config: RunConfig, pack: Pack, documents: Sequence[Document], root: Path, say: Callable[[str], None]
) -> Exam | None:
    """That of a run that is not begun, or of one that is; None where none is held. Raises as `before_a_run`."""
    run = RunFolder(root / config.name)
    if config.judge.kind != "model" or config.judge.exam == "none":
        return None
    if run.config.exists():
        return read_exam(run)
    return RunExam(config, pack, documents, waiting_folder(root, config.name), say).before_a_run()


def take_exam(root: Path, folder: RunFolder) -> None:
    """Give a run that begins the exam that was held before it."""
    waiting = waiting_folder(root, folder.path.name)
    if waiting.exam.exists():
        waiting.exam.replace(folder.exam)
    shutil.rmtree(waiting.path, ignore_errors=True)


def _is_random(judge: ModelJudge) -> bool:
    """Whether it judges at random on purpose, in a rehearsal."""
    return judge.uncalibrated.startswith(f"{RANDOM_MODEL} ")


def _example(role: PromptRole, task: Task, document: Document, answer: Rollout) -> Question[Any]:
    is_pair = role is PromptRole.SELECT
    by = Criterion(text="") if role in (PromptRole.GRADE, PromptRole.SCORE_EXPLICIT) else None
    documents = [document] if role is not PromptRole.RUBRIC_DIMENSIONS else []
    return question_of(role, task, documents=documents, answers=[answer] * (1 + is_pair), by=by)
