"""The embedded judge: gates, rubrics, grades and comparisons by rule, and what cannot fool it."""

import random
from collections.abc import Sequence

import pytest

from scope_selfplay.base.values import (
    Criterion,
    Document,
    Fault,
    Gate,
    Outcome,
    Rollout,
    Rubric,
    Task,
    Verdict,
)
from scope_selfplay.corpus.world import (
    BY_NOUN,
    LINKS,
    PLACES,
    RELATIONS,
    Entity,
    FactQuestion,
    make_documents,
    read_article,
    walk,
    write_answer,
    write_chain,
    write_question,
)
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

DOCUMENTS = make_documents(random.Random(5), 30, source="w")
ARTICLES = {document.title: document for document in DOCUMENTS}
ENTITIES = {entity.name: entity for each in DOCUMENTS if (entity := read_article(each.text))}
SOURCE = DOCUMENTS[0]
FIRST = ENTITIES[SOURCE.title]
WAYS = {
    links: tuple(link for link, _ in walk(random.Random(links), FIRST.name, links, ENTITIES.__getitem__))
    for links in range(4)
}
"""A chain of so many links that begins at the first article."""
JUDGE = LexicalJudge()


def task_about(text: str) -> Task:
    return Task(id="t1", text=text, type="long_form_qa", document_id=SOURCE.id)


def way(links: Sequence[str]) -> list[Entity]:
    """The places along a chain from the first one."""
    places = [FIRST]
    for link in links:
        places.append(ENTITIES[places[-1].links[link]])
    return places


def question(links: tuple[str, ...] = (), count: int = 3) -> Task:
    return task_about(write_question(FactQuestion(tuple(way(links)[-1].facts)[:count], links, FIRST.name)))


def found(links: Sequence[str]) -> list[Document]:
    return [ARTICLES[place.name] for place in way(links)]


def full_answer(links: tuple[str, ...] = ()) -> str:
    target = way(links)[-1]
    return write_answer(target.name, target.facts)


async def rubric_of(task: Task, documents: Sequence[Document] = (SOURCE,)) -> Rubric:
    rubric = (await JUDGE.ask(RubricQuestion(task, documents))).value
    assert rubric is not None
    return rubric


async def verdict_on(task: Task, gate: Gate, document: Document | None) -> Verdict:
    return (await JUDGE.ask(GateQuestion(task, gate, document))).verdict


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


async def test_a_gate_knows_what_its_prompt_shows_and_nothing_else() -> None:
    """Whether there is such a place, or such a link, is no question to whom no article is shown."""
    for text in (f"Report the river and the year of {PLACES[0]}'s twin.", question(WAYS[2]).text):
        assert (await verdict_on(task_about(text), Gate.ENTITY, None)).value is True
    assert (await verdict_on(task_about("Say something nice."), Gate.ENTITY, None)).value is False


async def test_a_task_that_asks_too_little_or_begins_elsewhere_fails_the_source_gate() -> None:
    for task in (question(WAYS[0], 2), question(WAYS[1], 1)):
        assert (await verdict_on(task, Gate.ENTITY, SOURCE)).value is True
        verdict = await verdict_on(task, Gate.SOURCE, SOURCE)
        assert verdict.value is False and "asks for too little" in verdict.reasoning
        assert (await JUDGE.ask(RubricQuestion(task, [SOURCE]))).verdict.fault is Fault.REFUSED
    far = next(name for name in ENTITIES if name not in (FIRST.name, *FIRST.links.values()))
    for place, passes in ((far, False), (next(iter(FIRST.links.values())), True)):
        task = task_about(f"Report the river, the year and the founder of {place}.")
        assert (await verdict_on(task, Gate.SOURCE, SOURCE)).value is passes
    foreign = Document(id="x", title="x", text="Paris is the capital of France")
    for source in (None, foreign):
        assert (await verdict_on(question(), Gate.SOURCE, source)).value is False


@pytest.mark.parametrize("links", WAYS.values(), ids=len)
@pytest.mark.parametrize("count", [2, 3])
async def test_a_rubric_has_what_is_asked_and_the_documents_that_state_it(
    count: int, links: tuple[str, ...]
) -> None:
    if count + bool(links) < 3:
        return
    rubric = await rubric_of(question(links, count), found(links))
    assert len(rubric.criteria) == count + bool(links) and rubric.unmet == ()
    assert all(is_stated(each.text, full_answer(links)) for each in rubric.criteria)
    assert not any(is_stated(each.text, "") for each in rubric.criteria)
    assert all((each.weight, each.dimension) == (1.0, "asked") for each in rubric.criteria)
    ids = tuple(dict.fromkeys(document.id for document in found(links)))
    *place, _ = [each.evidence for each in rubric.criteria][: 1 + bool(links)]
    # Whoever is to find the place has to read every link to it.
    assert place == ([ids[: len(links)]] if links else [])
    assert {each.evidence for each in rubric.criteria[bool(links) :]} == {(found(links)[-1].id,)}


async def test_what_the_documents_do_not_state_cannot_be_asked() -> None:
    """Whatever is true in the world: the judge has read what it was shown, and no more."""
    links = WAYS[2]
    task, places, (source, middle, end) = question(links), way(links), found(links)
    text = f"{places[2].name} is {places[2].kind}. {LINKS['twin'].sentence('Corvale')}"
    cut = end.model_copy(update={"text": text})
    chain, facts = [f"{FIRST.name}'s {links[0]}", f"{FIRST.name}'s {links[0]}'s {links[1]}"], places[2].facts
    for given, unmet in [
        ((source, middle), (f"what is said of {chain[1]}",)),
        ((source, end), (f"what is said of {chain[0]}",)),
        ((middle, end), (f"what is said of {FIRST.name}",)),
        ((source, middle, cut), tuple(f"the {noun} of {places[2].name}" for noun in facts)),
        ((source, middle, end, cut.model_copy(update={"id": "twin"})), (f"what is said of {chain[1]}",)),
    ]:
        rubric = await rubric_of(task, given)
        assert (rubric.criteria, rubric.unmet) == ((), unmet)
    other = next(link for link in RELATIONS if link not in FIRST.links)
    unknown = task_about(f"Report the river and the year of {FIRST.name}'s {other}.")
    rubric = await rubric_of(unknown, [source])
    assert (rubric.criteria, rubric.unmet) == ((), (f"{FIRST.name}'s {other}",))
    assert (await rubric_of(task, (end, source, middle))).unmet == ()


@pytest.mark.parametrize("links", [WAYS[0], WAYS[2]], ids=len)
async def test_a_rubric_from_the_query_alone_knows_no_fact(links: tuple[str, ...]) -> None:
    task = question(links)
    rubric = await rubric_of(task, ())
    assert 5 <= len(rubric.criteria) <= 7
    assert not any(value in each.text for each in rubric.criteria for value in way(links)[-1].facts.values())
    wrong = write_answer("Corvale", dict.fromkeys(way(links)[-1].facts, "unknown"))
    for answer, score in ((full_answer(links), 1.0), (wrong, 1.0), ("Its king is dead.", 0.0)):
        grade = await grade_answer(JUDGE, task, rubric, answer_of(answer), key=(0,))
        assert grade.score == pytest.approx(score)
    wordy = f"{full_answer(links)} Corvale. {full_answer(links)}"
    assert not is_stated("Says nothing twice.", wordy) and not is_stated("Names one place at most.", wordy)
    assert not is_stated("Says nothing that was not asked.", full_answer(links), ["river"])


async def test_what_is_stated_first_counts_and_a_claim_or_a_link_states_nothing() -> None:
    noun, value = next(iter(FIRST.facts.items()))
    criterion = f"Identifies the {noun} of {FIRST.name} as {value}."
    right = BY_NOUN[noun].sentence(value)
    wrong = BY_NOUN[noun].sentence(next(each for each in BY_NOUN[noun].values if each != value))
    assert is_stated(criterion, f"{right} {wrong}")
    assert not is_stated(criterion, f"{wrong} {right}"), "listing guesses does not pay"
    identity = f"Identifies {write_chain(FIRST.name, ('rival',))} as Corvale."
    assert is_stated(identity, "Corvale.") and not is_stated(identity, "Aldmoor. Corvale.")
    assert not is_stated(identity, LINKS["rival"].sentence("Corvale"))
    for claim in ("All criteria are met.", "Its founder was Its founder was Merrin.", "Its founder was A or"):
        assert not any(is_stated(each.text, claim) for each in (await rubric_of(question())).criteria)
    for unread in ("", "Be nice.", "Identifies ", "Identifies the river", " as ", "Identifies x as ."):
        asked = GradeQuestion(question(), Criterion(text=unread), full_answer())
        assert (await JUDGE.ask(asked)).value is False


@pytest.mark.parametrize("case", reference_cases("hostile_answers.json", "name"))
async def test_hostile_answers_are_graded_as_what_they_state(case: dict[str, str]) -> None:
    """Hostile text around a true answer neither hides it nor adds to it, wherever sentences stay whole."""
    task, hostile = question(), case.get("answer", "")
    rubric = await rubric_of(task)
    for text, score in ((hostile, 0.0), (f"{full_answer()} {hostile}", 1.0)):
        assert (await grade_answer(JUDGE, task, rubric, answer_of(text), key=(0,))).score == score


@pytest.mark.parametrize("place", [FIRST.name, "Nowhere"])
async def test_of_answers_that_state_the_same_the_one_that_says_less_beside_it_is_better(place: str) -> None:
    task, nouns = question(), list(FIRST.facts)
    asked = FIRST.facts if place == FIRST.name else dict.fromkeys(FIRST.facts, "unknown")
    more = {noun: "unknown" for noun in BY_NOUN if noun not in asked}
    terse, wordy = (
        answer_of(write_answer(place, told), row) for row, told in enumerate((asked, asked | more), 1)
    )
    for rubric in (await rubric_of(task), None):
        for style in Style:
            outcome = await outcome_of(task, wordy, terse, style, rubric)
            assert 0 <= outcome.first < outcome.second <= 1
    assert (await JUDGE.ask(SelectQuestion(task, None, [wordy, terse], 1))).value == [1]
    one_thing = Criterion(text=f"Identifies the {nouns[0]} of {FIRST.name} as {FIRST.facts[nouns[0]]}.")
    outcome = await outcome_of(task, wordy, terse, rubric=one_thing)
    assert outcome.first == outcome.second


async def test_what_is_not_of_this_world_has_no_score_and_no_winners() -> None:
    task = task_about("Who built the pyramids?")
    scored = await JUDGE.ask(ScoreQuestion(task, answer_of("x"), None, scale=Scale.IMPLICIT))
    selected = await JUDGE.ask(SelectQuestion(task, None, [answer_of("x")], 1))
    assert scored.value is None and selected.value is None
    assert scored.verdict.fault is selected.verdict.fault is Fault.REFUSED
    with pytest.raises(ValueError, match="not about this world"):
        await outcome_of(task, answer_of("x"), answer_of("y"))
