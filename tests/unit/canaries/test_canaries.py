"""Questions with known verdicts: every judge that errs is found, an honest one never, and nothing of them is kept."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError, ExitCode, JudgeError, RecordError
from scope_selfplay.base.values import Criterion, Document, Rubric, Task
from scope_selfplay.config.judge import JudgeConfig, JudgeRole, NoiseConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.world import FactQuestion, embedded_documents, write_question
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.canaries import CanaryWatch
from scope_selfplay.judge.cases import cases_of, statements
from scope_selfplay.judge.checks import CanaryKind, canary_shares, read_canaries, share_interval
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    Judge,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    Scale,
    SelectQuestion,
    Style,
)
from scope_selfplay.judge.rules import LexicalJudge, with_noise
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.testing.chat_server import FakeServer
from tests.judges import JudgeOver, answer_of, questions

WORLD = embedded_documents(0, load_config(None, []).corpus)
JUDGE = LexicalJudge()
ARTICLE = WORLD[0]
TASK = Task(
    id="t",
    text=write_question(FactQuestion(("river", "year", "emblem"), (), ARTICLE.title)),
    type="long_form_qa",
    document_id=ARTICLE.id,
)
CRITERION = Criterion(text=f"Identifies the river of {ARTICLE.title} as Ysk.")
RUBRIC = Rubric(task_id="t", criteria=(CRITERION,))
PROSE = [
    Document(
        id=f"d{number}",
        title=title,
        text=f"{title} was opened in {1850 + number} after {number + 3} years of quarrels over its cost. "
        f"Engineers from {place} lined it with granite because the older plan had failed twice. {title} closed.",
    )
    for number, (title, place) in enumerate({"The Hoosac Tunnel": "Boston", "The Elm Canal": "Ghent"}.items())
]


def watch_of(
    judge: Judge,
    root: Path,
    documents: Sequence[Document] = WORLD,
    rate: float = 0.5,
    file: str | None = None,
) -> CanaryWatch:
    place = (RunFolder(root), 1, Stage.SOLVER)
    return CanaryWatch(judge, cases_of(file, documents), rate=rate, place=place, seed=0)


async def work(judge: Judge, times: int = 60, *, only: type[Question[Any]] = Question) -> list[Reply[Any]]:
    """Asks every question so often, about answers of its own each time; what the judge said to the stage."""
    found: list[Reply[Any]] = []
    for number in range(times):
        pair = (answer_of(f"{number}. Its river is the {name}.", name) for name in ("Ysk", "Wey"))
        every = reversed(questions(TASK, ARTICLE, RUBRIC, *pair))
        asked = {each.name: each for each in every if not isinstance(each, RubricQuestion)}
        found += await asyncio.gather(*(judge.ask(each) for each in asked.values() if isinstance(each, only)))
    return found


async def test_an_honest_judge_passes_every_canary_and_what_a_stage_gets_is_the_same(tmp_path: Path) -> None:
    metered = MeteredJudge(watch := watch_of(JUDGE, tmp_path))
    assert await work(metered) == await work(MeteredJudge(JUDGE))
    shares = canary_shares(watch.verdicts)
    assert all((each.value, each.note) == (1.0, "") for each in shares.values())
    roles = (JudgeRole.GATES, JudgeRole.GRADE, JudgeRole.COMPARE)
    # A gate is shown no answer that could be padded, changed in part or praise itself.
    assert len(shares) == len(roles) * len(CanaryKind) - 4
    questions = Counter(each.question for each in watch.verdicts)
    assert set(questions.values()) == {30} and len(questions) == 3 + 1 + len(Style) + 1 + len(Scale)
    # The stage's account knows nothing of them.
    assert metered.tally.calls == 60 * len(questions)
    assert read_canaries(RunFolder(tmp_path), 1, Stage.SOLVER) == watch.verdicts
    assert not list(tmp_path.glob("iteration-*"))


@pytest.mark.parametrize(
    ("noise", "role", "only"),
    [
        ({"wrong": 1.0}, "gates", GateQuestion),
        ({"wrong": 1.0}, "grade", GradeQuestion),
        ({"wrong": 1.0}, "compare", PairQuestion),
        ({"wrong": 1.0}, "compare", SelectQuestion),
        ({"first": 1.0}, "compare", PairQuestion),
        ({"first": 1.0}, "compare", SelectQuestion),
        ({"longer": 1.0, "half_length": 2}, "grade", GradeQuestion),
        ({"longer": 1.0}, "compare", PairQuestion),
    ],
)
async def test_a_judge_that_errs_stops_the_stage_and_says_what_to_do(
    tmp_path: Path, noise: dict[str, Any], role: str, only: type[Question[Any]]
) -> None:
    judge = watch_of(with_noise(JUDGE, NoiseConfig.model_validate(noise)), tmp_path)
    with pytest.raises(JudgeError) as stopped:
        await work(judge, 400, only=only)
    text = str(stopped.value)
    assert text.startswith(f"the judge fails its canaries ({role}") and "\n" not in text
    assert "at least 70% expected" in text and str(tmp_path / "iteration-01" / "solver") in text
    assert stopped.value.exit_code is ExitCode.OUTSIDE
    assert not all(each.is_right for each in read_canaries(RunFolder(tmp_path)))


async def test_an_unreadable_judge_is_left_to_the_failure_budget_and_a_step_measures_its_own(
    tmp_path: Path,
) -> None:
    watch = watch_of(with_noise(JUDGE, NoiseConfig(unreadable=1.0)), tmp_path)
    await work(watch, only=GradeQuestion)
    shares = canary_shares(watch.verdicts)
    assert sum(each.items for each in shares.values()) == 30
    assert all(each.note == f"{each.items} unread" for each in shares.values())
    first, second = watch.measures(), watch.measures()
    assert str(first["canaries"]) == "Total(value=30)" and str(second["canaries"]) == "Total(value=0)"


async def test_a_served_judge_is_asked_anew_in_every_start_and_pays_for_canaries_at_the_rate(
    tmp_path: Path, judge_over: JudgeOver
) -> None:
    """A cached reply would hide that the server has been given other weights."""
    fake = FakeServer(lambda request: judged_reply(JUDGE, request))
    # So patient that it asks a busy machine for no sign of life.
    async with judge_over(fake, cache=tmp_path / "judgements.sqlite") as judge:
        for start in (1, 2):
            before = len(fake.requests)
            watch = watch_of(judge, tmp_path, rate=0.02)
            await work(watch, 200, only=GradeQuestion)
            assert len(watch.verdicts) == 4 and all(each.is_right for each in watch.verdicts)
            # The stage's own 200 answers are paid for once; the canaries of both starts all are.
            assert len(fake.requests) - before == (200 if start == 1 else 0) + 4
            assert not any(each.verdict.cached for each in watch.verdicts)
        assert judge.roles[PromptRole.GRADE]["calls"] == 2 * 204
    assert len(list(RunFolder(tmp_path).canaries.iterdir())) == 2


def test_cases_of_prose_ask_for_a_statement_that_wrong_answers_lack_or_change() -> None:
    pick = cases_of(None, PROSE)
    for seed in range(50):
        case = pick(random.Random(seed))
        demanded = case.criterion.removeprefix("States that ")[1:]
        assert case.document in PROSE and demanded in case.right
        assert not any(demanded in each for each in (case.wrong, case.partial, case.altered))
        foreign = [
            each for document in PROSE if document != case.document for each in statements(document.text)
        ]
        assert all(f"{each.removesuffix('.')}." in foreign for each in case.wrong.split(". "))
        assert case.partial in case.document.text
        # One number, or one name.
        assert len(set(case.altered.split()) - set(case.right.split())) == 1
        assert case.criterion in case.criteria
        assert case.passes_gates and case.document.title in case.task
    assert statements("这条河从山上流下来,经过很多村庄。它流进大海。") == ["这条河从山上流下来,经过很多村庄."]
    # Without two documents they are plain facts.
    for documents in ([], PROSE[:1], [PROSE[0], PROSE[0]]):
        case = cases_of(None, documents)(random.Random(1))
        assert case.document is None and case.passes_gates and case.right in case.criterion


async def test_a_file_of_ones_own_takes_the_place_of_documents(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    case = {"task": TASK.text, "criterion": CRITERION.text, "right": "Its river is the Ysk.", "wrong": "No."}
    file.write_text(json.dumps(case) + "\n")
    watch = watch_of(JUDGE, tmp_path, file=str(file))
    await work(watch, 20, only=GradeQuestion)
    assert {each.task for each in watch.verdicts} == {TASK.text}
    assert all(each.is_right for each in watch.verdicts)
    file.write_text(json.dumps({**case, "answer": "?"}) + "\n")
    with pytest.raises(RecordError, match=r"cases\.jsonl"):
        cases_of(str(file), WORLD)
    file.write_text("")
    with pytest.raises(ConfigError, match=r"judge\.canaries\.file: .* holds no case"):
        cases_of(str(file), WORLD)


def test_a_model_is_watched_by_default_and_a_rule_is_not_and_canaries_change_no_hash() -> None:
    endpoint = {"base_url": "http://127.0.0.1:1/v1"}
    for settings, rate in (
        ({"kind": "lexical"}, 0.0),
        ({"kind": "model", "endpoint": endpoint}, 0.01),
        ({"kind": "lexical", "canaries": {"rate": 0.2}}, 0.2),
    ):
        assert JudgeConfig.model_validate(settings).canary_rate == rate
    assert load_config(None, ["judge.canaries.rate=0.1"]).hash == load_config(None, []).hash


def test_the_interval_of_a_share_is_wilsons() -> None:
    from scipy.stats import binomtest

    for right, asked in ((0, 10), (5, 10), (10, 10), (90, 100)):
        known = binomtest(right, asked).proportion_ci(0.99, method="wilson")
        assert share_interval(right, asked) == pytest.approx((known.low, known.high), abs=1e-4)
