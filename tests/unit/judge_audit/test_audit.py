"""Judgements asked again: an honest judge agrees with itself, every error is found, and nothing is paid twice."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, JudgeError, RecordError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Document, Gate, Rollout, Task
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.world import (
    BY_NOUN,
    FactQuestion,
    embedded_documents,
    read_article,
    write_answer,
    write_question,
)
from scope_selfplay.judge.checks import (
    DRIFT,
    FIRST_PLACE,
    LENGTH,
    UNREAD,
    AuditReport,
    AuditWay,
    JudgementKind,
    read_asked,
    read_audit,
)
from scope_selfplay.judge.protocol import (
    GateQuestion,
    Judge,
    PairQuestion,
    RubricQuestion,
    Style,
    grade_answer,
)
from scope_selfplay.judge.rules import LexicalJudge, with_noise
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.play.audit import audit_judge
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.report.health import audit_values, examine
from scope_selfplay.report.rendering import render_report
from scope_selfplay.report.signals import signal_of
from scope_selfplay.run.begin import with_judge_prompts
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.reader import RunReader
from scope_selfplay.testing.chat_server import FakeServer
from tests.unit.store.runs import candidate, solver_rollout
from tests.unit.viewer.conftest import viewed

FINDS: dict[str, tuple[dict[str, float], set[str]]] = {
    "honest": ({}, set()),
    "wrong": ({"wrong": 0.3}, {"judge_agreement"}),
    "first": ({"first": 0.3}, {"position_bias"}),
    "longer": ({"longer": 0.3}, {"length_bias"}),
    "unreadable": ({"unreadable": 0.2}, {"judge_unread"}),
}
"""By noise, what an audit of the usual number of calls must warn of, at the least."""


def write_judged_run(
    root: Path, config: RunConfig, judge: Judge, *, tasks: int = 60, iterations: Sequence[int] = (1, 2)
) -> RunFolder:
    """Gated tasks in every iteration, graded answers of two Solvers, each pair compared once."""
    folder, documents = RunFolder(root), embedded_documents(config.seed, config.corpus)
    pack = with_judge_prompts(load_pack(pack_path(config.domain)), config.judge)
    folder.prompts.mkdir(parents=True)
    for name, text in pack.files().items():
        write_atomic(folder.prompts / name, text)
    write_atomic(folder.config, yaml.safe_dump(config.model_dump(mode="json")))
    write_records(folder.corpus, documents)
    rng = random.Random(config.seed)
    for iteration in iterations:
        drawn = [_drawn(rng, document, iteration) for document in rng.sample(documents, tasks)]
        asyncio.run(_judge_stage(folder, judge, drawn, iteration))
    return folder


def _drawn(rng: random.Random, document: Document, iteration: int) -> tuple[Task, Document, list[Rollout]]:
    """A task with its document, and what two Solvers answer to it: facts, each right as often as not."""
    entity = read_article(document.text)
    assert entity is not None
    nouns = tuple(rng.sample(list(entity.facts), 3))
    text = write_question(FactQuestion(nouns, (), entity.name))
    task_id = f"task-{iteration}-{document.id}"
    answers = []
    for solver in (iteration - 1, iteration):
        said = {
            each: entity.facts[each] if rng.random() < 0.5 else rng.choice(BY_NOUN[each].values)
            for each in nouns
        }
        answer = write_answer(entity.name, said)
        answers.append(solver_rollout(f"{task_id}-{solver}", f"S_{solver}-aa", task_id, answer))
    return Task(id=task_id, text=text, type="long_form_qa", document_id=document.id), document, answers


async def _judge_stage(
    folder: RunFolder, judge: Judge, drawn: Sequence[tuple[Task, Document, list[Rollout]]], iteration: int
) -> None:
    tasks, compare = (folder.stage(iteration, stage) for stage in (Stage.TASKS, Stage.COMPARE))
    made, grades, comparisons = [], [], []
    for task, document, answers in drawn:
        # Rubrics are the honest ones: one that cannot be written leaves nothing to audit.
        rubric = (await LexicalJudge().ask(RubricQuestion(task, [document]))).value
        gated = {each: GateQuestion(task, each, document) for each in (Gate.ENTITY, Gate.SOURCE)}
        gates = {gate: (await judge.ask(question)).verdict for gate, question in gated.items()}
        accepted = candidate(iteration, 2)
        origin = accepted.provenance.model_copy(update={"document_id": document.id})
        own = {"id": f"candidate-{task.id}", "provenance": origin, "rollout_ids": (), "mean": None}
        said = {"task": task, "gates": gates, "rubric": rubric}
        made.append(accepted.model_copy(update={**own, **said}))
        grades += [await grade_answer(judge, task, rubric, each, key=(each.id,)) for each in answers]
        question = PairQuestion(task, *answers, style=Style.SCORES, rubric=rubric)
        comparisons.append(question.record(await judge.ask(question)))
    for place in (tasks, compare):
        place.path.mkdir(parents=True)
    write_records(tasks.candidates, made)
    write_records(compare.rollouts, [each for _, _, answers in drawn for each in answers])
    write_records(compare.grades, grades)
    write_records(compare.comparisons, comparisons)


def config_of(*settings: str) -> RunConfig:
    return load_config(None, ["name=audited", "domain=embedded", "judge.failure_budget=1", *settings])


def noisy_run(root: Path, noise: dict[str, float], **size: Any) -> RunFolder:
    config = config_of(*(f"judge.noise.{name}={share}" for name, share in noise.items()))
    judge = with_noise(LexicalJudge(), config.judge.noise)
    return write_judged_run(root, config, judge, **size)


def audited(folder: RunFolder, sample: int = 600, *settings: str) -> AuditReport:
    return audit_judge(folder.path, settings, Progress(), sample=sample)


def warned_of(report: AuditReport) -> set[str]:
    return {name for name, value in audit_values(report).items() if signal_of(name, value).warning}


@pytest.mark.parametrize("name", FINDS)
def test_an_audit_finds_what_is_wrong_with_a_judge_and_nothing_with_an_honest_one(
    name: str, tmp_path: Path
) -> None:
    noise, finds = FINDS[name]
    folder = noisy_run(tmp_path / "run", noise)
    report = audited(folder)
    assert report.calls <= 600 and warned_of(report) >= finds, str(report)
    if name == "honest":
        assert warned_of(report) == set()
        agreed = [check.value for what, check in report.checks.items() if what.startswith("agree, ")]
        assert agreed == [1.0] * len(agreed) and len(agreed) > 6
        assert [report.checks[bias].value for bias in (FIRST_PLACE, LENGTH, UNREAD)] == [0.0] * 3
        assert all(check.value == 0.0 for what, check in report.checks.items() if what.startswith(DRIFT))
    if name == "first":
        assert report.checks[FIRST_PLACE].value == pytest.approx(0.3, abs=0.15)
    if name == "unreadable":
        assert report.checks[UNREAD].value == pytest.approx(0.2, abs=0.05)
    with RunReader(folder.path) as reader:
        warnings = {found.name for checkup in examine(reader) for found in checkup.warnings}
    assert warnings >= finds


def test_an_audit_stays_within_its_calls_shares_them_and_is_the_same_each_time(tmp_path: Path) -> None:
    folder = noisy_run(tmp_path / "run", {"wrong": 0.3}, tasks=30)
    report = audited(folder, 90)
    asked = read_asked(folder)
    ways = Counter(each.way for each in asked)
    assert len(asked) == report.calls == 90 and ways == dict.fromkeys(list(AuditWay)[:3], 30)
    assert {each.kind for each in asked if each.way is AuditWay.AGAIN} == set(JudgementKind)
    assert Counter(each.iteration for each in asked if each.way is AuditWay.SWAPPED) == {1: 15, 2: 15}
    first = (folder.audit / "audit.json").read_bytes()
    # A part of it is lost, as by a kill; the rest is not asked again.
    lines = (folder.audit / "asked.jsonl").read_bytes().splitlines(keepends=True)
    (folder.audit / "asked.jsonl").write_bytes(b"".join(lines[:50]) + lines[50][:20])
    assert audited(folder, 90) == report and (folder.audit / "audit.json").read_bytes() == first
    assert (folder.audit / "asked.jsonl").read_bytes().splitlines(keepends=True)[:50] == lines[:50]
    # More calls ask again what fewer asked, and others.
    audited(folder, 240)
    assert {each.id for each in asked} < {each.id for each in read_asked(folder)}


def test_a_judge_that_has_changed_is_found_by_the_answers_that_it_met_then(tmp_path: Path) -> None:
    folder = noisy_run(tmp_path / "run", {})
    report = audited(folder, 2400, "judge.noise.longer=1")
    drifts = {what: check for what, check in report.checks.items() if what.startswith(DRIFT)}
    assert "judge_drift" in warned_of(report)
    assert drifts.keys() == {f"{DRIFT}: {name}" for name in ("iteration 1", "iteration 2", "asked")}
    for check in drifts.values():
        then, now = map(float, check.note.split(" -> "))
        assert now < then and check.value == pytest.approx(now - then, abs=0.05) and check.value < 0


async def test_a_served_judge_is_asked_anew(tmp_path: Path) -> None:
    honest = LexicalJudge()
    fake = FakeServer(lambda request: judged_reply(honest, request))
    async with fake.serving() as url:
        own = config_of("judge.kind=model", f"judge.endpoint.base_url={url}")
        folder = await asyncio.to_thread(write_judged_run, tmp_path / "run", own, honest, tasks=20)
        report = await asyncio.to_thread(audited, folder, 200)
        asked = len(fake.requests)
        assert await asyncio.to_thread(audited, folder, 200) == report
    # Nothing of it is asked twice, and nothing was answered by the run's own cache.
    assert len(fake.requests) == asked == report.calls == 200
    assert not any(each.cached for each in read_asked(folder))
    assert not (folder.path / "judgements.sqlite").exists()
    agreed = [check.value for what, check in report.checks.items() if what.startswith("agree, ")]
    assert set(agreed) == {1.0}
    assert {each.way for each in read_asked(folder)} == set(AuditWay)


def test_the_command_prints_what_it_found_and_keeps_it_for_every_page(tmp_path: Path) -> None:
    folder = noisy_run(tmp_path / "run", {"first": 0.6}, tasks=40)
    printed = CliRunner().invoke(cli, ["judge", "audit", str(folder.path), "--sample", "300"])
    assert printed.exit_code == 0, printed.output
    assert "agree, in the other order: comparison" in printed.output
    assert "== Warnings\n  what being shown first adds to a win: 0." in printed.output
    told = CliRunner().invoke(cli, ["judge", "audit", str(folder.path), "--sample", "300", "--json"])
    found = json.loads(told.stdout)
    assert found["checks"][FIRST_PLACE]["value"] > 0.3 and found["warnings"] and found["calls"] == 300
    stats = CliRunner().invoke(cli, ["report", str(folder.path)])
    assert "what being shown first adds to a win" in stats.output and stats.output.count("is over 0.05") == 1
    with RunReader(folder.path) as reader:
        assert ">what being shown first adds to a win</th>" in render_report(reader)
    with viewed(folder.path) as client:
        assert ">what being shown first adds to a win</th>" in client.get("/").text


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ((), RecordError, "holds no judgement that could be asked again"),
        (("judge.kind=verifier",), ConfigError, "judge.kind is verifier"),
        (("judge.kind=model", "judge.endpoint.base_url=http://0.0.0.0:1/v1"), JudgeError, "does not answer"),
    ],
)
def test_what_cannot_be_audited_or_read_is_said_in_one_line(
    tmp_path: Path, settings: tuple[str, ...], error: type[Exception], words: str
) -> None:
    folder = noisy_run(tmp_path / "run", {}, tasks=4, iterations=() if error is RecordError else (1,))
    with pytest.raises(error, match=words) as raised:
        audited(folder, 20, *settings)
    assert "\n" not in str(raised.value) and read_audit(folder) is None
    (folder.audit / "audit.json").parent.mkdir(exist_ok=True)
    (folder.audit / "audit.json").write_text("{")
    with pytest.raises(RecordError, match=r"run `scope judge audit .*run` again"):
        read_audit(folder)
