"""Generated attacks on every prompt and reader, as many as a time allows, and whether any of them gets through.

    python -m benchmarks.attacks [--seconds 60] [--seed 0]

The attack, its disguises and where it is put are drawn; a case that gets through is printed. Exit code 1 where one
does, or where fewer than 2,000 cases a minute are tried.
"""

import itertools
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.options import read_options
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.text import clean, printable, suspicions
from scope_selfplay.base.values import Criterion, Document, Passage, Role, Rollout, Rubric, Task, Turn
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.dialects.families import DIALECTS
from scope_selfplay.judge.fences import Fenced, fence_key, is_opener, read_fences, text_outside
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
)
from scope_selfplay.judge.questions import JudgePrompt, JudgePrompts
from scope_selfplay.judge.replies import (
    parse_correctness,
    parse_preference,
    parse_rating,
    parse_rubric,
    parse_score,
    parse_two_scores,
)
from scope_selfplay.prompts.folder import load_pack, shipped_prompts
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.testing.attacks import as_read, blanks, control_tag_in, quotations, variants
from tests.reference_files import read_reference
from tests.word_codec import WordCodec

LEAST_A_MINUTE = 2_000
CASES = read_reference("attacks.json")["cases"]
SEEDS = [case["text"] for case in CASES if case["kind"] in ("text", "screen", "policy", "result")]
VERDICTS = [case["verdict"] for case in CASES if case["kind"] == "reply" and case["reader"] != "winners"]
READERS = (parse_score, parse_correctness, parse_preference, parse_rating, parse_two_scores, parse_rubric)
Check = Callable[[random.Random], None]


def checks() -> dict[str, Check]:
    pack = load_pack(shipped_prompts() / "wikipedia")
    prompts = JudgePrompts(pack, JudgeConfig(), key=fence_key("attacks"))
    roles = {f"judge: {name}": _of_judge(ask) for name, ask in _questions(prompts).items()}
    return {
        **roles,
        "replies": _check_reply,
        "blank answers": _check_blank,
        "results": _check_result,
        "texts": _check_text,
    }


def _questions(prompts: JudgePrompts) -> dict[str, Callable[[str], JudgePrompt[object]]]:
    """Every role of the judge, with the attack wherever a text of others goes."""

    def task(text: str) -> Task:
        return Task(id="t", text=text, type="long_form_qa", document_id="d", reference=text)

    def document(text: str) -> Document:
        return Document(id="d", title=text, text=text)

    def rollout(number: int, text: str) -> Rollout:
        found = (Passage(id="p", title=text, text=text),)
        turns = (Turn(thinking=text, query=text, passages=found, text=text), Turn(thinking=text, text=text))
        return Rollout(
            id=str(number),
            role=Role.SOLVER,
            checkpoint="",
            subject_id="t",
            turns=turns,
            answer=f"{text}{number}",
        )

    def rubric(text: str) -> Rubric:
        return Rubric(task_id="t", criteria=(Criterion(text=text, title=text),))

    asked: dict[str, Callable[[str], Question[Any]]] = {
        "rubric": lambda text: RubricQuestion(task(text), [document(text)] * 2),
        "dimensions": lambda text: RubricQuestion(task(text), ()),
        "grade": lambda text: GradeQuestion(task(text), Criterion(text=text), text),
        "select": lambda text: SelectQuestion(
            task(text), rubric(text), [rollout(n, text) for n in range(3)], 1
        ),
    }
    for gate in Gate:
        asked[f"gate {gate}"] = lambda text, gate=gate: GateQuestion(task(text), gate, document(text))
    for style in Style:
        asked[f"compare {style}"] = lambda text, style=style: PairQuestion(
            task(text), rollout(1, text), rollout(2, text), style=style, rubric=rubric(text)
        )
    for scale in Scale:
        asked[f"score {scale}"] = lambda text, scale=scale: ScoreQuestion(
            task(text),
            rollout(1, text),
            Criterion(text=text) if scale is Scale.EXPLICIT else rubric(text),
            scale=scale,
        )
    return {name: lambda text, make=make: prompts.render(make(text)) for name, make in asked.items()}


def _of_judge(ask: Callable[[str], JudgePrompt[object]]) -> Check:
    frame = text_outside(ask("harmless").prompt)
    names = _names(read_fences(ask("harmless").prompt))

    def check(rng: random.Random) -> None:
        prompt = ask(_attack(rng)).prompt
        found = read_fences(prompt)
        assert _names(found) == names, "the fences differ"
        assert len(text_outside(prompt).split("\n")) == len(frame.split("\n")), (
            "words stand outside of the fences"
        )
        for fence in _all(found):
            assert (tag := control_tag_in(as_read(fence.text))) is None, f"{tag} is shown"
        prompt.encode()

    return check


def _names(fences: tuple[Fenced, ...]) -> list[str]:
    """Without reasoning in the open: a text that begins with a call has none."""
    return [each.name for each in _all(fences) if each.name != "reasoning"]


def _all(fences: tuple[Fenced, ...]) -> list[Fenced]:
    return [each for fence in fences for each in (fence, *_all(fence.inner))]


def _attack(rng: random.Random) -> str:
    return next(variants(rng.choice(SEEDS), rng, 1))


def _check_reply(rng: random.Random) -> None:
    reply = next(quotations(rng.choice(VERDICTS), rng, 1))
    for read in READERS:
        assert read(reply) is None, f"{read.__name__} reads {reply!r}"
        read(_attack(rng))


def _check_blank(rng: random.Random) -> None:
    text = next(blanks(rng, 1))
    assert is_opener(text), f"{text!r} counts as an answer"
    for family in DIALECTS:
        parts = family.parse(f"<answer>{text}</answer>")
        assert parts.answer is None, f"{family.name} reads {text!r}"


def _check_result(rng: random.Random) -> None:
    passage = Passage(id="p", title=_attack(rng), text=_attack(rng))
    shown, _ = show_passages([passage], WordCodec(), 10_000)
    assert (tag := control_tag_in(as_read(shown))) is None, f"{tag} is shown"


def _check_text(rng: random.Random) -> None:
    text = _attack(rng)
    once = clean(text)
    assert clean(once) == once, "cleaned twice is another text"
    assert all(each.isprintable() or each in "\n\t" or each.isspace() for each in printable(text))
    suspicions(text)


def main() -> int:
    options = read_options(__doc__, seconds=60.0, seed=0)
    known, failed, total = checks(), False, 0
    for name, check in known.items():
        tried, fault = _tried(check, options.seed, options.seconds / len(known))
        print(f"{name:28} {tried:>8,} cases  {fault or 'hold'}", flush=True)
        failed, total = failed or bool(fault), total + tried
    rate = 60 * total / options.seconds
    print(f"{total:,} cases: {rate:,.0f} a minute (at least {LEAST_A_MINUTE:,})")
    return int(failed or rate < LEAST_A_MINUTE)


def _tried(check: Check, seed: int, seconds: float) -> tuple[int, str]:
    """How many cases were tried until the time was over or one got through, and what is said of that one."""
    end = time.monotonic() + seconds
    for case in itertools.count(1):
        try:
            check(random.Random(f"{seed}/{case}"))
        except AssertionError as error:
            return case, f"FAILS: {error}"
        if time.monotonic() >= end:
            break
    return case, ""


if __name__ == "__main__":
    sys.exit(main())
