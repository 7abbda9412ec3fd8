"""The fictional world: every fact can be read back, names are unique, and tasks mean what they say."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.corpus.world import (
    ATTRIBUTES,
    PLACES,
    RELATIONS,
    VERBS,
    FactQuestion,
    embedded_tasks,
    make_documents,
    read_article,
    read_question,
    write_question,
)
from scope_selfplay.judge.rules import is_stated
from tests.text_work import assert_linear

NOUNS = [attribute.noun for attribute in ATTRIBUTES]
names = st.sampled_from(PLACES)
questions = st.builds(
    FactQuestion,
    nouns=st.lists(st.sampled_from(NOUNS), min_size=1, max_size=len(NOUNS), unique=True).map(tuple),
    links=st.lists(st.sampled_from(RELATIONS), max_size=5, unique=True).map(tuple),
    anchor=names,
    verb=st.sampled_from(list(VERBS.values())),
)


def test_equal_seeds_make_equal_worlds_of_enough_names() -> None:
    first, second = (make_documents(random.Random(7), 20, source="w") for _ in range(2))
    assert first == second != make_documents(random.Random(8), 20, source="w")
    with pytest.raises(ValueError, match="more than 5, and"):
        make_documents(random.Random(0), 5, source="w")
    with pytest.raises(ValueError, match="names are free"):
        make_documents(random.Random(0), len(PLACES) + 1, source="w")


@given(questions)
def test_a_written_question_reads_back_in_every_family(question: FactQuestion) -> None:
    text = write_question(question)
    assert read_question(text) == question
    assert read_question(f"  {text}\n") == question


@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [
        ("Report the founder of Aldmoor", "'s rival", "."),
        ("Report ", "the founder, ", "the river of Aldmoor."),
        ("", ".", ""),
        ("", "Its founder was ", ""),
        ("Report the river", " of ", ""),
    ],
)
def test_hostile_text_is_read_with_work_that_grows_no_faster_than_the_text(
    before: str, piece: str, after: str
) -> None:

    def read(text: str) -> None:
        read_question(text)
        is_stated("Identifies the founder of Aldmoor as Merrin.", text)
        is_stated("Identifies Aldmoor's rival as Corvale.", text)

    assert_linear(read, piece, wrapper=f"{before}{{}}{after}")


def test_held_out_questions_are_a_fixed_mix_of_depths_from_articles_of_their_own() -> None:
    documents = make_documents(random.Random(0), 40, source="w")
    drawn = [(task, read_question(task.text)) for task in embedded_tasks(1, documents, 40)]
    articles = {document.id: read_article(document.text) for document in documents}
    assert [question.hops for _, question in drawn if question] == [1, 2, 3, 4, 5] * 8
    assert len({task.document_id for task, _ in drawn}) == 40
    for task, question in drawn:
        place = articles[task.document_id]
        assert question is not None and place is not None and question.anchor == place.name
        assert len(set(question.links)) == question.hops
        shown = {each.name: each for name in task.evidence_ids if (each := articles[name])}
        for link in question.links:
            place = shown[place.links[link]]
        assert len(question.nouns) in (2, 3) and set(question.nouns) <= set(place.facts)
    with pytest.raises(ConfigError, match=r"41 embedded tasks .* found 40; lower compare\.tasks"):
        embedded_tasks(1, documents, 41)


def test_a_world_without_a_chain_as_long_as_asked_for_says_so_and_ends() -> None:
    documents = make_documents(random.Random(0), 40, source="w")[:8]
    with pytest.raises(
        ConfigError, match=r"no chain of \d links starts at \w+, found at most \d; expected articles"
    ):
        embedded_tasks(1, documents, 8)
