"""A judge that errs on purpose: how often, in which way, the same for the same call, and never a number for a fault."""

import asyncio
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Fault, Outcome, Rollout, Rubric, Verdict
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
    failed,
)
from scope_selfplay.judge.rules import LexicalJudge, NoisyJudge, VerifierJudge, with_noise
from tests.judges import CRITERION, TASK, answer_of, questions

MANY = 4000


class Honest:
    """Likes answers with `good` in them, and has nothing to say about ones with `fog` in them."""

    identity = "honest"

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        if "fog" in repr(question):
            return failed(Fault.REFUSED, "fog")
        match question:
            case GateQuestion():
                return question.said(True)
            case RubricQuestion(task):
                return question.said(Rubric(task_id=task.id, criteria=(CRITERION,)))
            case GradeQuestion(answer=answer):
                return question.said("good" in answer)
            case PairQuestion(first=first, second=second):
                return question.said(Outcome(0.8 * _good(first), 0.8 * _good(second)))
            case SelectQuestion(candidates=candidates, winners=winners):
                order = sorted(range(len(candidates)), key=lambda number: -_good(candidates[number]))
                return question.said(order[:winners])
            case ScoreQuestion(rollout=rollout, scale=scale):
                return question.said((1.0 if scale.of_trace else 10.0) * _good(rollout))
        raise AssertionError(question)


def _good(rollout: Rollout) -> float:
    return float("good" in (rollout.answer or ""))


def noisy(**shares: float) -> NoisyJudge:
    return NoisyJudge(Honest(), NoiseConfig.model_validate(shares))


async def grades(judge: NoisyJudge, answer: str, count: int = MANY) -> list[Verdict]:
    asked = [judge.ask(GradeQuestion(TASK, CRITERION, answer, key=(number,))) for number in range(count)]
    return [reply.verdict for reply in (await asyncio.gather(*asked))]


async def matches(
    judge: NoisyJudge, first: str, second: str, count: int = MANY, *, names: str = "ab"
) -> list[Reply[Outcome]]:
    one, other = names
    pairs = ((answer_of(first, f"{one}{n}"), answer_of(second, f"{other}{n}")) for n in range(count))
    return await asyncio.gather(*[judge.ask(PairQuestion(TASK, *pair, style=Style.SCORES)) for pair in pairs])


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


async def test_verdicts_are_unreadable_and_turned_around_as_often_as_set() -> None:
    found = await grades(noisy(unreadable=0.1, wrong=0.2), "good")
    unreadable = [verdict for verdict in found if verdict.fault is Fault.UNREADABLE]
    assert len(unreadable) / MANY == pytest.approx(0.1, abs=0.015)
    assert share([verdict.value is False for verdict in found]) == pytest.approx(0.2, abs=0.02)
    assert all(verdict.value is None for verdict in unreadable)


async def test_every_kind_of_noise_has_its_share_of_the_comparisons() -> None:
    judge = noisy(unreadable=0.1, wrong=0.1, first=0.2, longer=0.3)
    found = [match.value for match in await matches(judge, "good", "a longer one that is bad")]
    shares = {outcome: found.count(outcome) / MANY for outcome in set(found)}
    assert shares == pytest.approx(
        {
            None: 0.1,
            Outcome(0.0, 0.8): 0.1,
            Outcome(1.0, 0.0): 0.2,
            Outcome(0.0, 1.0): 0.3,
            Outcome(0.8, 0.0): 0.3,
        },
        abs=0.02,
    )


async def test_noise_falls_on_each_order_of_a_pair_by_itself() -> None:
    judge = noisy(wrong=0.5)
    ahead = [match.value == Outcome(0.0, 0.8) for match in await matches(judge, "good", "bad", 400)]
    turned = await matches(judge, "bad", "good", 400, names="ba")
    behind = [match.value == Outcome(0.8, 0.0) for match in turned]
    assert share([a == b for a, b in zip(ahead, behind, strict=True)]) == pytest.approx(0.5, abs=0.1)


async def test_the_longer_answer_wins_wherever_it_is_shown_and_equal_ones_are_judged() -> None:
    judge = noisy(longer=1)
    ahead = await matches(judge, "good", "bad and long", 9)
    assert {each.value for each in ahead} == {Outcome(0.0, 1.0)}
    assert all("on purpose" in each.verdict.reasoning for each in ahead)
    assert {each.value for each in await matches(judge, "bad and long", "good", 9)} == {Outcome(1.0, 0.0)}
    alike = await matches(judge, "good", "bad", 9)
    assert {each.value for each in alike} == {Outcome(0.8, 0.0)}
    assert not any("on purpose" in each.verdict.reasoning for each in alike)


async def test_a_criterion_is_met_the_more_often_the_longer_the_answer_is() -> None:
    judge = noisy(longer=1, half_length=20)
    met = [
        share([bool(verdict.value) for verdict in await grades(judge, "bad " * words)])
        for words in (5, 20, 60)
    ]
    assert met == pytest.approx([1 - 2**-0.25, 0.5, 1 - 2**-3], abs=0.025)


@pytest.mark.parametrize(
    ("scale", "marks"), [(Scale.IMPLICIT, (3.0, 5.0, 9.0)), (Scale.CORRECTNESS, (0.5, 0.5, 1.0))]
)
async def test_a_score_by_length_lies_on_its_scale(scale: Scale, marks: tuple[float, ...]) -> None:
    judge = noisy(longer=1, half_length=20)
    given = [
        (await judge.ask(ScoreQuestion(TASK, answer_of("bad " * words), None, scale=scale))).value
        for words in (10, 20, 60)
    ]
    assert given == list(marks)


async def test_selections_prefer_what_is_first_longest_or_would_have_lost() -> None:
    shown = [answer_of(text, name) for name, text in enumerate(("bad", "good", "bad " * 9, "bad"))]
    picked = {
        kind: (await noisy(**{kind: 1}).ask(SelectQuestion(TASK, None, shown, winners))).value
        for kind, winners in (("first", 2), ("longer", 1), ("unreadable", 1))
    }
    assert picked["first"] == [0, 1] and picked["longer"] == [2] and picked["unreadable"] is None
    turned = noisy(wrong=1)
    shown[3] = answer_of("good", 3)
    assert sorted((await turned.ask(SelectQuestion(TASK, None, shown, 2))).value or ()) == [0, 2]
    # More winners than losers: all who would have lost, and some whom they leave room for.
    three = (await turned.ask(SelectQuestion(TASK, None, shown, 3))).value
    assert three is not None and len(set(three)) == 3 and len({1, 3} & set(three)) >= 1


async def test_a_selection_by_length_favours_no_place_among_equals() -> None:
    groups = ([answer_of("bad", f"{n}{m}") for m in range(4)] for n in range(400))
    found = await asyncio.gather(
        *[noisy(longer=1).ask(SelectQuestion(TASK, None, group, 1)) for group in groups]
    )
    places = [reply.value[0] for reply in found]
    assert [places.count(place) / 400 for place in range(4)] == pytest.approx([0.25] * 4, abs=0.07)


@pytest.mark.parametrize("kind", ["unreadable", "wrong", "first", "longer"])
async def test_no_fault_becomes_a_number(kind: str) -> None:
    judge = MeteredJudge(noisy(**{kind: 1}))
    foggy, clear = answer_of("fog over a long answer", 1), answer_of("good", 2)
    refused = [
        (await judge.ask(GradeQuestion(TASK, CRITERION, "fog"))).value,
        (await judge.ask(PairQuestion(TASK, foggy, clear, style=Style.SCORES))).value,
        (await judge.ask(ScoreQuestion(TASK, foggy, None, scale=Scale.IMPLICIT))).value,
    ]
    assert refused == [None] * 3 and judge.tally.failed == 3

    if kind == "unreadable":
        for question in questions():
            assert (await judge.ask(question)).value is None
        # All but a rubric from documents, which is no judgement.
        assert judge.tally.calls == judge.tally.failed == 3 + len(questions()) - 1


async def test_equal_calls_err_alike_in_any_order_and_other_keys_err_otherwise() -> None:
    judge = noisy(wrong=0.5)
    forth = [verdict.value for verdict in await grades(judge, "good", 200)]
    asked = (GradeQuestion(TASK, CRITERION, "good", key=(number,)) for number in reversed(range(200)))
    back = [reply.value for reply in (await asyncio.gather(*list(map(judge.ask, asked))))]
    assert forth == back[::-1] and len(set(forth)) == 2


async def test_more_noise_spoils_the_same_calls_and_others() -> None:
    little, much = [
        [verdict.value for verdict in await grades(noisy(wrong=part), "good")] for part in (0.1, 0.3)
    ]
    assert all(less or not more for less, more in zip(much, little, strict=True) if more is False)


def test_the_identity_names_the_noise_and_without_noise_it_is_the_judge_itself() -> None:
    plain = LexicalJudge([])
    judges = [with_noise(plain, NoiseConfig(**shares)) for shares in ({"first": 0.1}, {"first": 0.3})]
    assert len({judge.identity for judge in (plain, *judges)}) == 3
    assert judges[1].identity == f"{plain.identity} with noise: first 30%"
    assert with_noise(plain, None) is plain
    assert "half at 40 words" in with_noise(VerifierJudge(), NoiseConfig(longer=0.1)).identity


def test_noise_is_part_of_what_a_run_computes() -> None:
    hashes = {
        load_config(None, [setting]).hash
        for setting in ("seed=0", "judge.noise.first=0.1", "judge.noise.first=0.3", "judge.noise.longer=0.1")
    }
    assert len(hashes) == 4
    # It acts on nothing by itself.
    assert load_config(None, ["judge.noise.half_length=7"]).hash in hashes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["judge.kind=model", "judge.endpoint.base_url=http://127.0.0.1:1/v1"], "is for judges by rule"),
        (["judge.noise.longer=0.9"], "add up to 1.2"),
        (["judge.noise.unreadable=0.1"], "raise judge.failure_budget"),
    ],
)
def test_noise_that_cannot_be_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["judge.noise.first=0.3", *settings])
