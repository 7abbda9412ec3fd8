"""What `make bench-real-model` teaches from, counts and prints, without the model."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.factbook_corpus import passage_of
from benchmarks.real_model.kept import Answered, Behaviour, Kept, Marks, Said, Step, Training, marks_of
from benchmarks.real_model.page import behaviour_table, gain, groups_table, seeds_table, spoken_table
from benchmarks.real_model.results import answered, behaviour, by_question, steps_of
from benchmarks.real_model.seeds import CONFIG, PACK, Seed, write_questions
from benchmarks.real_model.traces import Script
from benchmarks.real_model_answers import read_lines
from scope_selfplay.config import load_config
from scope_selfplay.dialects import dialect
from scope_selfplay.given_tasks import read_given_tasks
from scope_selfplay.prompts import load_pack
from scope_selfplay.schemas import Passage, Role, Rollout, RolloutStatus, Turn
from tests.word_codec import WordCodec

RIGHT = {"q1": "Moroni", "q2": "7 July"}


def rollout(question: str, answer: str | None, *turns: Turn) -> Rollout:
    status = RolloutStatus.FINISHED if answer else RolloutStatus.TRUNCATED
    return Rollout(
        id=f"{question}-{answer}",
        role=Role.SOLVER,
        checkpoint="S_0",
        subject_id=question,
        turns=turns,
        answer=answer,
        status=status,
    )


def search(query: str | None, *found: str) -> Turn:
    passages = tuple(Passage(id="p", title="Comoros: government", text=text) for text in found)
    return Turn(text=f"<search>{query}</search>", query=query, passages=passages)


ANSWERED = rollout(
    "q1", "Moroni", search("Comoros", "Capital: Moroni."), Turn(text="<answer>Moroni</answer>")
)
HALF = rollout(
    "q2", "the 8 July", search("Comoros", "7 July, 8 July"), Turn(text="<answer>the 8 July</answer>")
)
BROKEN = rollout("q1", None, Turn(text="<search><search>"))


def test_behaviour_counts_turns_that_can_be_read_and_answers_that_are_right() -> None:
    found = behaviour([ANSWERED, HALF, BROKEN, BROKEN], RIGHT)
    assert found == Behaviour(parsed=0.6667, searched=0.5, found=0.5, answered=0.5, right=0.25, reward=0.375)


def test_marks_are_means_over_the_answers_to_a_question() -> None:
    said = [Said("Comoros", "moroni."), Said("Comoros", "the capital Moroni"), Said(None, None)]
    assert marks_of(said, "cn-capital") == Marks(1 / 3, pytest.approx(0.5555, abs=1e-3))


def test_a_gain_is_paired_by_question() -> None:
    before = {f"q{number}": Marks(0.0, number % 2) for number in range(100)}
    after = {name: Marks(1.0, each.f1) for name, each in before.items()}
    sure = gain(before, after, "exact")
    assert sure.low is not None and sure.low > 0.9
    same = gain(before, after, "f1")
    assert same.value == 0 and same.low is not None and same.high is not None and same.low < 0 < same.high


def test_steps_take_the_rollouts_that_were_theirs() -> None:
    line = {"entropy": 0.5, "zero_variance": 0.25, "step_seconds": 60.0}
    found = steps_of([ANSWERED, HALF, BROKEN, BROKEN], [line, line], RIGHT)
    assert [step.behaviour.right for step in found] == [0.5, 0.0]
    assert found[0].flat == 0.25 and found[0].seconds == 60


def test_what_was_said_is_kept_by_question_greedily_first() -> None:
    before = by_question([ANSWERED, HALF, BROKEN])
    assert before["q1"] == [Said("Comoros", "Moroni"), Said(None, None)]
    sampled = {name: [*said, Said("x", "y")] for name, said in before.items()}
    found = answered([sampled, sampled])
    assert [each.id for each in found] == ["q1", "q2"]
    assert found[0].greedy[0] == Said("Comoros", "Moroni") and len(found[0].sampled[1]) == 2


def kept_of(*said: Said) -> Kept:
    """A seed that answered every held-out question in these words, before and after."""
    before, after = said
    behaviour = Behaviour(parsed=1.0, searched=1.0, found=0.25, answered=1.0, right=0.5, reward=0.5)
    step = Step(behaviour=behaviour, entropy=0.5, flat=0.25, seconds=60.0)
    training = Training(seed=1, minutes=31.4, held_out=(behaviour, behaviour), steps=(step,) * 16)
    rows = [
        Answered(id=row["id"], greedy=(before, after), sampled=((before,), (after,)))
        for row in read_lines("held_out")
    ]
    return Kept(training, rows)


def test_the_tables_show_both_ways_and_steps_in_eighths() -> None:
    kept = kept_of(Said(None, None), Said("Comoros", "Moroni"))
    rows = seeds_table([kept, kept]).splitlines()
    assert rows[2].startswith("| 1 | greedy | exact match | 0.00 [0.00, 0.0") and len(rows) == 2 + 2 * 4
    steps = [row for row in behaviour_table([kept]).splitlines() if "| steps " in row]
    assert len(steps) == 8 and steps[0].startswith("| 1 | steps 1 to 2 | 1.00 | 1.00 | 0.25 | 1.00 | 0.50 |")
    assert steps[-1].endswith("| 0.50 | 0.25 | 60 |")
    (capital,) = (row for row in groups_table([kept]).splitlines() if row.startswith("| capital "))
    assert capital == "| capital | 39 | 0.00 | 0.03 | 0.00 | 0.03 |"


def test_answers_are_shown_as_they_were() -> None:
    rows = spoken_table(kept_of(Said(None, None), Said("Comoros", "a|b"))).splitlines()
    assert len(rows) == 12
    assert rows[2] == "| What is the capital of Comoros? | Moroni | `(none)`: (none) | `Comoros`: a\\|b |"


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(load_pack(PACK), WordCodec(), 90)


def test_a_trace_teaches_the_protocol_with_what_the_search_really_finds(script: Script) -> None:
    family = dialect("qwen2.5")
    traces = script.traces(1, solver=12, challenger=4)
    questions = {row["question"]: row for row in read_lines("train")}
    roles = {"question": 0, "task": 0}
    for trace in traces:
        call = trace[1]["tool_calls"][0]["function"]
        assert call["name"] == "search" and family.search_call(call["arguments"]["query"])
        parts = family.parse(trace[-1]["content"])
        if parts.task is not None:
            roles["task"] += 1
            assert parts.task in questions and "<information>" in trace[2]["content"]
            continue
        roles["question"] += 1
        asked = questions[str(trace[0]["content"]).rpartition("Question: ")[2].strip()]
        assert parts.answer == asked["answers"][0] and parts.answer in trace[2]["content"]
    assert roles == {"question": 12, "task": 4}
    assert script.traces(1, solver=12, challenger=4) == traces != script.traces(2, solver=12, challenger=4)


def test_a_search_that_finds_another_passage_teaches_nothing(script: Script) -> None:
    kept = [
        [script.answering(row, by_title=way) for row in read_lines("train")[:60]] for way in (True, False)
    ]
    by_title, by_phrase = (sum(trace is not None for trace in traces) for traces in kept)
    assert by_phrase < by_title
    for row, trace in zip(read_lines("train")[:60], kept[0], strict=True):
        assert trace is None or script.passages[passage_of(row["id"])].title in trace[2]["content"]


def test_a_seeds_run_is_of_this_configuration_and_its_questions_are_checked_by_rule(tmp_path: Path) -> None:
    seed = Seed(3, tmp_path, overrides=("solver.steps=2",))
    write_questions(seed.questions("held_out"), "held_out")
    config = load_config(CONFIG, seed.settings)
    assert config.solver.steps == 2 and config.model.path == str(tmp_path / "seed-3" / "start")
    assert config.solver.kl_beta == 0 and config.judge.kind == "verifier"
    candidates = read_given_tasks(str(seed.questions("held_out")))
    assert len(candidates) == 289 and checks(candidates) == {"text"}


def checks(candidates: Sequence[object]) -> set[str]:
    return {each.rubric.criteria[0].check.value for each in candidates}  # type: ignore[attr-defined]
