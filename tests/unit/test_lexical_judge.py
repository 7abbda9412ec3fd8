"""The embedded judge: gates, rubrics, grades and comparisons by rule, and what cannot fool it."""

import random
from collections.abc import Sequence

import pytest

from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import (
    Criterion,
    Document,
    Fault,
    Outcome,
    Priority,
    Rollout,
    RolloutStatus,
    Rubric,
    Task,
    Verdict,
)
from scope_selfplay.corpus.world import (
    BY_NOUN,
    Entity,
    FactQuestion,
    make_documents,
    read_article,
    write_answer,
    write_chain,
    write_link,
    write_place,
    write_question,
)
from scope_selfplay.judge.fences import OPENERS, is_opener
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
    grade_answer,
)
from scope_selfplay.judge.rules import LexicalJudge, is_stated
from tests.judges import answer_of
from tests.reference_files import reference_cases
from tests.unit.reward_designs.scripted import RUBRIC, TASK, ScriptedJudge

DOCUMENTS = make_documents(random.Random(5), 30, source="w")
ENTITIES = {entity.name: entity for each in DOCUMENTS if (entity := read_article(each.text))}
SOURCE = DOCUMENTS[0]
FIRST = ENTITIES[SOURCE.title]
JUDGE = LexicalJudge(DOCUMENTS)
BARE = Document(id="b", title="Bare", text="Bare is a tower. Its river is the Ysk.")


def task_about(text: str) -> Task:
    return Task(id="t1", text=text, type="long_form_qa", document_id=SOURCE.id)


def question(entity: Entity, count: int = 3, links: tuple[str, ...] = ()) -> Task:
    target = follow(entity, links)
    return task_about(write_question(FactQuestion(tuple(target.facts)[:count], links, entity.name)))


def follow(entity: Entity, links: Sequence[str]) -> Entity:
    for link in links:
        entity = ENTITIES[entity.links[link]]
    return entity


def full_answer(entity: Entity, links: tuple[str, ...] = ()) -> str:
    target = follow(entity, links)
    return write_answer(target.name, target.facts)


async def rubric_or_none(
    task: Task, documents: Sequence[Document] = (SOURCE,), judge: LexicalJudge = JUDGE
) -> Rubric | None:
    return (await judge.ask(RubricQuestion(task, documents))).value


async def rubric_of(
    task: Task, documents: Sequence[Document] = (SOURCE,), judge: LexicalJudge = JUDGE
) -> Rubric:
    rubric = await rubric_or_none(task, documents, judge)
    assert rubric is not None
    return rubric


async def verdict_on(
    task: Task, gate: Gate, document: Document | None, judge: LexicalJudge = JUDGE
) -> Verdict:
    return (await judge.ask(GateQuestion(task, gate, document))).verdict


async def outcome_of(
    task: Task,
    first: Rollout,
    second: Rollout,
    style: Style = Style.SCORES,
    rubric: Rubric | Criterion | None = None,
) -> Outcome:
    found = (await JUDGE.ask(PairQuestion(task, first, second, style=style, rubric=rubric))).value
    assert found is not None
    return found


@pytest.mark.parametrize("links", [(), ("rival",), ("partner", "rival")])
@pytest.mark.parametrize("gate", Gate)
async def test_a_clear_task_about_the_source_passes_every_gate(gate: Gate, links: tuple[str, ...]) -> None:
    verdict = await verdict_on(question(FIRST, links=links), gate, SOURCE)
    assert verdict.value is True and verdict.fault is None


TWIN = SOURCE.model_copy(update={"id": "twin"})


@pytest.mark.parametrize(
    ("text", "documents", "reason"),
    [
        ("Say something nice.", DOCUMENTS, "not one clear question"),
        ("Report the river of Nowhere Tower.", DOCUMENTS, "no article about Nowhere Tower"),
        ("Report the river of Nowhere Tower's rival.", DOCUMENTS, "no article about Nowhere Tower"),
        ("Report the river of Bare's rival.", [BARE], "names no rival"),
        (question(FIRST).text, [*DOCUMENTS, TWIN], "Several articles"),
    ],
)
async def test_a_task_that_names_nothing_or_several_things_fails_the_entity_gate(
    text: str, documents: list[Document], reason: str
) -> None:
    judge, task = LexicalJudge(documents), task_about(text)
    verdict = await verdict_on(task, Gate.ENTITY, None, judge)
    assert verdict.value is False and reason in verdict.reasoning
    assert await rubric_or_none(task, (), judge) is None


async def test_a_task_that_asks_only_what_nobody_knows_fails_the_source_gate() -> None:
    task, judge = task_about("Report the year of Bare."), LexicalJudge([BARE])
    assert (await verdict_on(task, Gate.ENTITY, BARE, judge)).value is True
    verdict = await verdict_on(task, Gate.SOURCE, BARE, judge)
    assert verdict.value is False and "Nothing that it asks" in verdict.reasoning
    assert await rubric_or_none(task, (), judge) is None


@pytest.mark.parametrize(("count", "links"), [(2, ()), (1, ("rival",))])
async def test_a_task_that_asks_too_little_fails_the_source_gate(count: int, links: tuple[str, ...]) -> None:
    task = question(FIRST, count, links)
    assert (await verdict_on(task, Gate.ENTITY, SOURCE)).value is True
    verdict = await verdict_on(task, Gate.SOURCE, SOURCE)
    assert verdict.value is False and "asks for too little" in verdict.reasoning


async def test_a_task_about_something_else_fails_the_source_gate() -> None:
    near = {FIRST.name, *FIRST.links.values()}
    far = next(
        each for each in ENTITIES.values() if each.name not in near and FIRST.name not in each.links.values()
    )
    assert (await verdict_on(question(far), Gate.SOURCE, SOURCE)).value is False
    assert (await verdict_on(question(far), Gate.ENTITY, SOURCE)).value is True
    foreign = Document(id="x", title="x", text="Paris is the capital of France")
    for source in (None, foreign):
        assert (await verdict_on(question(FIRST), Gate.SOURCE, source)).value is False


@pytest.mark.parametrize("links", [(), ("rival",), ("rival", "partner")])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_a_rubric_has_what_is_asked_and_nothing_else_and_at_least_three_things(
    count: int, links: tuple[str, ...]
) -> None:
    task = question(FIRST, count, links)
    if count + bool(links) < 3:
        assert await rubric_or_none(task) is None
        return
    rubric = await rubric_of(task)
    assert len(rubric.criteria) == count + bool(links)
    answer = full_answer(FIRST, links)
    assert all(is_stated(each.text, answer) for each in rubric.criteria)
    assert not any(is_stated(each.text, "") for each in rubric.criteria)
    assert all((each.weight, each.dimension) == (1.0, "asked") for each in rubric.criteria)


async def test_the_place_that_was_asked_for_is_a_criterion_whose_text_no_other_task_has() -> None:
    rubric = await rubric_of(question(FIRST, 2, ("rival", "heir")))
    target = follow(FIRST, ("rival", "heir"))
    assert rubric.criteria[0].text == f"Identifies {FIRST.name}'s rival's heir as {target.name}."
    on_the_way = write_answer(FIRST.links["rival"], follow(FIRST, ("rival",)).facts)
    assert not is_stated(rubric.criteria[0].text, on_the_way)


@pytest.mark.parametrize("links", [(), ("rival",), ("rival", "partner")])
async def test_a_rubric_from_the_query_alone_is_filled_up_with_what_nobody_asked(
    links: tuple[str, ...],
) -> None:
    rubric = await rubric_of(question(FIRST, 2, links), ())
    assert len(rubric.criteria) == 5
    hidden = [each for each in rubric.criteria if each.dimension == "hidden"]
    assert len(hidden) == 3 - bool(links)
    assert all(each.priority is Priority.BONUS for each in hidden)
    way = [each.text for each in hidden if each.text.startswith(f"Identifies {FIRST.name}")]
    assert len(way) == max(0, len(links) - 1)


@pytest.mark.parametrize(
    ("count", "links", "unmet"), [(3, (), 0), (5, (), 0), (4, ("heir",), 0), (5, ("heir",), 1)]
)
async def test_a_demand_that_has_no_room_in_a_rubric_is_told(
    count: int, links: tuple[str, ...], unmet: int
) -> None:
    """At most five criteria: a place and five facts are one demand too many."""
    rubric, target = await rubric_of(question(FIRST, count, links)), follow(FIRST, links)
    assert rubric.unmet == tuple(f"the {noun} of {target.name}" for noun in list(target.facts)[5 - unmet :])


async def test_a_demand_that_no_article_answers_is_told() -> None:
    poor = Document(id="p", title="Poor", text=f"{BARE.text} Its emblem is the owl. Its founder was Maris.")
    task = task_about("Report the year, the river, the emblem and the founder of Bare.")
    assert (await rubric_of(task, [poor], LexicalJudge([poor]))).unmet == ("the year of Bare",)


async def test_a_criterion_names_the_documents_that_state_it() -> None:
    """The place at the end of a chain needs every link on the way, its facts its own article alone."""
    links = ("rival", "heir")
    task, way = question(FIRST, 2, links), [FIRST, follow(FIRST, ("rival",)), follow(FIRST, links)]
    first, second, third = (next(each for each in DOCUMENTS if each.title == one.name) for one in way)
    for given, place, fact in [
        ((first, second, third), (first.id, second.id), (third.id,)),
        ((third, first), (), (third.id,)),
        ((first, second), (first.id, second.id), ()),
        ((first,), (), ()),
    ]:
        rubric = await rubric_of(task, given)
        assert [each.evidence for each in rubric.criteria] == [place, fact, fact]


async def test_a_passage_that_was_cut_before_a_fact_is_no_evidence_of_it() -> None:
    whole = next(each for each in DOCUMENTS if each.title == FIRST.name)
    cut = whole.model_copy(update={"text": f"{FIRST.name} is {FIRST.kind}. Its founder was"})
    for documents, evidence in [([whole], (whole.id,)), ([cut], ()), ((), None)]:
        rubric = await rubric_of(question(FIRST), documents)
        assert {each.evidence for each in rubric.criteria} == {evidence}


async def test_the_first_mention_counts_so_listing_guesses_does_not_pay() -> None:
    noun, value = next(iter(FIRST.facts.items()))
    criterion = f"Identifies the {noun} of {FIRST.name} as {value}."
    right = BY_NOUN[noun].sentence(value)
    wrong = BY_NOUN[noun].sentence(next(each for each in BY_NOUN[noun].values if each != value))
    assert is_stated(criterion, f"{right} {wrong}")
    assert not is_stated(criterion, f"{wrong} {right}")
    identity = f"Identifies {write_chain(FIRST.name, ('rival',))} as Corvale."
    assert is_stated(identity, "Corvale.") and not is_stated(identity, "Aldmoor. Corvale.")


async def test_a_sentence_about_a_link_is_no_identity() -> None:
    target = FIRST.links["rival"]
    criterion = f"Identifies {write_chain(FIRST.name, ('rival',))} as {target}."
    assert not is_stated(criterion, write_link("rival", target))


@pytest.mark.parametrize(
    "claim",
    [
        "All criteria are met.",
        "Its founder was Its founder was Merrin.",
        "Its founder was Merrin or Aldous or anyone",
    ],
)
async def test_a_claim_is_no_fact(claim: str) -> None:
    rubric = await rubric_of(question(FIRST, 3))
    assert not any(is_stated(each.text, claim) for each in rubric.criteria)


@pytest.mark.parametrize("case", reference_cases("hostile_answers.json", "name"))
async def test_hostile_answers_are_graded_as_what_they_state(case: dict[str, str]) -> None:
    """Hostile text around a true answer neither hides it nor adds to it, wherever sentences stay whole."""
    task, hostile = question(FIRST, 3), case.get("answer", "")
    rubric = await rubric_of(task)
    for text, score in ((hostile, 0.0), (f"{full_answer(FIRST)} {hostile}", 1.0)):
        assert (await grade_answer(JUDGE, task, rubric, answer_of(text), key=(0,))).score == score


@pytest.mark.parametrize(
    "criterion", ["", ".", "Be nice.", "Identifies ", "Identifies the river", " as ", "Identifies x as ."]
)
async def test_a_criterion_that_the_judge_cannot_read_is_not_met(criterion: str) -> None:
    asked = GradeQuestion(question(FIRST), Criterion(text=criterion), full_answer(FIRST))
    assert (await JUDGE.ask(asked)).value is False


async def test_the_better_answer_wins_a_comparison_in_both_orders() -> None:
    task = question(FIRST, 3)
    good, poor = answer_of(full_answer(FIRST), 1), answer_of(write_place(FIRST.name, FIRST.kind), 2)
    for style in Style:
        found = await outcome_of(task, good, poor, style)
        assert found.first > found.second
        assert await outcome_of(task, poor, good, style) == Outcome(found.second, found.first)
    tie = await outcome_of(task, good, good)
    assert tie.first == tie.second


@pytest.mark.parametrize("place", [FIRST.name, "Nowhere"], ids=["right", "wrong"])
async def test_of_answers_that_state_the_same_the_one_that_says_less_beside_it_is_better(place: str) -> None:
    task, nouns = question(FIRST, 3), list(FIRST.facts)[:3]
    facts = FIRST.facts if place == FIRST.name else dict.fromkeys(FIRST.facts, "unknown")
    asked = {noun: facts[noun] for noun in nouns}
    terse, wordy = (answer_of(write_answer(place, told), row) for row, told in enumerate((asked, facts), 1))
    for rubric in (await rubric_of(task, DOCUMENTS), None):
        for style in Style:
            outcome = await outcome_of(task, wordy, terse, style, rubric)
            assert 0 <= outcome.first < outcome.second <= 1
    assert (await JUDGE.ask(SelectQuestion(task, None, [wordy, terse], 1))).value == [1]
    one_thing = Criterion(text=f"Identifies the {nouns[0]} of {FIRST.name} as {FIRST.facts[nouns[0]]}.")
    outcome = await outcome_of(task, wordy, terse, rubric=one_thing)
    assert outcome.first == outcome.second


async def test_a_selection_names_exactly_the_winners_wherever_they_stand() -> None:
    task = question(FIRST, 3)
    rng = random.Random(0)
    for _ in range(10):
        candidates, place = [answer_of(None, number) for number in range(4)], rng.randrange(5)
        candidates.insert(place, answer_of(full_answer(FIRST), 9))
        assert (await JUDGE.ask(SelectQuestion(task, None, candidates, 1))).value == [place]
        two = (await JUDGE.ask(SelectQuestion(task, None, candidates, 2))).value
        assert two is not None and len(set(two)) == 2 and place in two


async def test_a_tie_favours_no_place_in_the_list() -> None:
    task, places = question(FIRST), [0, 0, 0]
    for number in range(0, 300, 3):
        alike = [answer_of("", number + row) for row in range(3)]
        (winner,) = (await JUDGE.ask(SelectQuestion(task, None, alike, 1))).value or ()
        places[winner] += 1
    assert all(15 <= count < 60 for count in places)


async def test_scores_follow_their_scales() -> None:
    task = question(FIRST, 3)
    rubric, full = await rubric_of(task), full_answer(FIRST)
    half = BY_NOUN[next(iter(FIRST.facts))].sentence(next(iter(FIRST.facts.values())))
    for text, against, scale, scores in (
        (full, rubric, Scale.IMPLICIT, {10}),
        ("", None, Scale.IMPLICIT, {0}),
        (full, rubric, Scale.CORRECTNESS, {1}),
        (half, rubric, Scale.CORRECTNESS, {0, 0.5}),
        (full, rubric.criteria[0], Scale.EXPLICIT, {10}),
    ):
        assert (await JUDGE.ask(ScoreQuestion(task, answer_of(text), against, scale=scale))).value in scores


async def test_what_is_not_of_this_world_has_no_score_and_no_winners() -> None:
    task = task_about("Who built the pyramids?")
    scored = await JUDGE.ask(ScoreQuestion(task, answer_of("x"), None, scale=Scale.IMPLICIT))
    selected = await JUDGE.ask(SelectQuestion(task, None, [answer_of("x")], 1))
    assert scored.value is None and selected.value is None
    assert scored.verdict.fault is selected.verdict.fault is Fault.REFUSED
    with pytest.raises(ValueError, match="not about this world"):
        await outcome_of(task, answer_of("x"), answer_of("y"))


@pytest.mark.parametrize(
    "answer", [None, *OPENERS, ":", "Thought process:", "**Answer:**", "  Solution.\n", "#"]
)
async def test_an_empty_answer_scores_zero_and_a_failed_rollout_nothing_without_a_call(
    answer: str | None,
) -> None:
    judge, empty = ScriptedJudge(), answer_of(answer)
    grade = await grade_answer(judge, TASK, RUBRIC, empty, key=())
    assert grade.score == 0.0
    assert all(verdict.attempts == 0 and verdict.value is False for verdict in grade.verdicts)
    failed = empty.model_copy(update={"status": RolloutStatus.FAILED})
    grade = await grade_answer(judge, TASK, RUBRIC, failed, key=())
    assert (grade.score, grade.verdicts, judge.asked) == (None, (), [])


def test_an_answer_with_content_is_no_opener() -> None:
    assert not is_opener("Answer: 42") and not is_opener("the answer")
