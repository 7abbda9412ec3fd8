"""Questions with a short answer: what refuses them without a judge, and what they earn."""

import asyncio
import re
from collections.abc import Callable

import pytest

from scope_selfplay.base.sampling import ScriptedModel
from scope_selfplay.base.values import Check, Document, Key, Passage, ReaderAnswer, Reason, Role, Rollout
from scope_selfplay.config.run import RunConfig, TasksConfig
from scope_selfplay.config.training import ChallengerConfig
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.designs.answers import shares_alike, task_metrics, without_subject
from scope_selfplay.dialects.families import dialect
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.policy.episodes import Player, PolicyFormat, RolloutLimits
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.rewards.equations import frontier_reward
from scope_selfplay.rewards.measures import Mean
from scope_selfplay.rewards.verify import exact_match, f1, number_match, number_normal
from scope_selfplay.run.candidate import CandidateRecords, RunContext, SolverTrial, TaskWriter
from scope_selfplay.run.short_answers import gives_away, names_subject, read_pair, refused_by_readers, span_of
from tests.unit.run.test_candidate import PROMPTS, PROVENANCE
from tests.word_codec import WordCodec

ARUBA = Document(
    id="d1",
    title="Aruba: geography",
    text="Aruba lies north of Venezuela. Its highest point is Ceru Jamanota, of 188 m. Its capital is Oranjestad.",
)
ASKED = "What is the capital of Aruba? | Oranjestad"


def refused(written: str, document: Document = ARUBA) -> str:
    found = read_pair(written, document, TasksConfig())
    return found.value if isinstance(found, Reason) else document.text[slice(*found.span)]


@pytest.mark.parametrize(
    "written, found",
    [
        (ASKED, "Oranjestad"),
        ("How high is Ceru Jamanota in Aruba? | 188 m", "188 m"),
        ("What is the capital of Aruba?", Reason.NO_QUESTION),
        ("Tell the capital of Aruba | Oranjestad", Reason.NO_QUESTION),
        ("What is the capital of Aruba? | ...!", Reason.NO_QUESTION),
        ("Ignore this.\nWhat is the capital of Aruba? | Oranjestad", Reason.NO_QUESTION),
        ("What is the capital of Aruba? | Willemstad", Reason.NO_SPAN),
        ("What is the capital of Aruba? | Oranje", Reason.NO_SPAN),
        (f"What is Aruba like? | {ARUBA.text}", Reason.LONG_ANSWER),
        ("Is Oranjestad the capital of Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Is datsejnarO the capital of Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Is ORANJE-STAD the capital of Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Is Ｏｒａｎｊｅｓｔàｄ the capital of Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Is Jamanota or Ceru the highest point of Aruba? | Ceru Jamanota", Reason.GIVEN_AWAY),
        ("What does the 188m one mean for Aruba? | 188 m", Reason.GIVEN_AWAY),
        ("Is Оrаnjestаd the capital of Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Is 0r4nj3st4d the capital of Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Do all Oranjestads belong to Aruba? | Oranjestad", Reason.GIVEN_AWAY),
        ("Is ureC atonamaJ the highest point of Aruba? | Ceru Jamanota", Reason.GIVEN_AWAY),
        ("Is ١٨٨ m the height of Aruba? | 188 m", Reason.GIVEN_AWAY),
        ("What is the capital of Aruba? | Oranjestad", Reason.NO_QUESTION),
        ("What is the capital of Aruba?‏ ｜ Oranjestad", "Oranjestad"),
        ("What is Aruba's capital? | Oranjestad", "Oranjestad"),
        ("The capital of Aruba is what; | Oranjestad", Reason.NO_QUESTION),
        ("What is the capital? | Oranjestad", Reason.NO_SUBJECT),
        ("What is the geography of the capital? | Oranjestad", Reason.NO_SUBJECT),
    ],
)
def test_a_pair_is_refused_for_a_reason_of_its_own(written: str, found: str) -> None:
    assert refused(written) == found


@pytest.mark.parametrize("answer", ["5 °C", "5", "1", "02"])
def test_a_sign_and_a_decimal_point_belong_to_their_number(answer: str) -> None:
    aruba = Document(
        id="d5", title="Aruba", text="Aruba has seen -5 °C once, and lies 1.5 m high on 1,020 rocks."
    )
    assert refused(f"How is Aruba? | {answer}", aruba) == Reason.NO_SPAN
    assert refused("How is Aruba? | 1.5 m", aruba) == "1.5 m"
    assert f1("-5 °C", ["5 °C"], normal=number_normal) < 0.8
    assert [exact_match(each, ["1.5"], normal=number_normal) for each in ("15", "1.5")] == [0.0, 1.0]


@pytest.mark.parametrize(
    "answer, reference, found",
    [
        ("多瑙河。", "多瑙河", 1.0),
        ("“Warsaw”", "Warsaw", 1.0),
        ("دجلة،", "دجلة", 1.0),
        ("Cafe\u0301", "Café", 1.0),
        ("\u0667\u0666\u0662", "762", 1.0),
        # An article may be the answer, and nothing is none.
        ("a", "A", 1.0),
        *((each, "A", 0.0) for each in ("the", "...", "")),
    ],
)
def test_punctuation_and_digits_of_any_script_make_no_other_answer(
    answer: str, reference: str, found: float
) -> None:
    assert exact_match(answer, [reference], normal=number_normal) == found


def test_an_answer_is_no_whole_document_however_short_that_is() -> None:
    short = Document(id="d4", title="Aruba", text="It lies north.")
    assert refused("Where does Aruba lie? | It lies north.", short) == Reason.LONG_ANSWER
    assert refused("Where does Aruba lie? | north", short) == "north"


def test_pairs_of_any_language_are_read() -> None:
    wien = Document(id="d2", title="维也纳", text="维也纳位于多瑙河畔。它是奥地利的首都。")
    assert refused("维也纳位于哪条河畔？ | 多瑙河", wien) == "多瑙河"
    assert refused("奥地利的首都是哪里？ | 维也纳", wien) == Reason.NO_SUBJECT
    text = "한강이 서울을 흐른다. クリストファー・コロンブス. 1446년에 나왔다."
    mixed = Document(id="d4", title="한강", text=text)
    for answer in ("서울", "1446년", "クリストファー・コロンブス"):
        assert refused(f"한강은 어디? | {answer}", mixed) == answer
    assert refused("한강은 어디? | 한", mixed) == Reason.NO_SPAN
    hidden = Document(id="d5", title="Wien", text="\r\nWien liegt an der Do\u00adnau.")
    assert refused("Woran liegt Wien? | Donau", hidden) == "Do\u00adnau"
    untitled = Document(id="d3", title="", text="Sie liegt 12 m\nhoch.")
    assert refused("Wie hoch liegt die Stadt? | 12 m", untitled) == "12 m"
    assert span_of("12 m hoch", untitled.text) == (10, 19)


@pytest.mark.parametrize(
    "title, question, found",
    [
        ("The capital of Aruba", "What has the capital?", False),
        ("The capital of Aruba", "What has Aruba?", True),
        ("the art of printing", "When did it start?", False),
        ("the art of printing", "Who began printing?", True),
        ("Brevik Gate 4", "What happens after 4 seconds?", False),
        ("How to reset the gate", "How long is it?", False),
        ("Der Rhein", "Wo liegt die Quelle des Rheins?", True),
        ("维也纳", "它也是首都吗？", False),
        ("维也纳的历史", "维也纳建于哪一年？", True),
        ("北京：历史", "北京建于哪一年？", True),
        ("Москва", "Кто основал Москву?", True),
        ("بغداد", "ما هو نهر لبغداد؟", True),
        ("Austria", "What is the capital of Australia?", False),
    ],
)
def test_a_question_names_its_subject_by_a_name_of_the_title(title: str, question: str, found: bool) -> None:
    assert names_subject(question, title) is found


def test_a_gate_that_is_not_in_use_refuses_nothing() -> None:
    loose = TasksConfig(answer_gates=("given_away",))
    assert read_pair("What is the capital? | Oranjestad", ARUBA, loose) == (
        "What is the capital?",
        "Oranjestad",
        (92, 102),
    )
    assert refused_by_readers(readings("nnnn", "yy"), loose) is None
    assert read_pair("What is the capital? | Willemstad", ARUBA, loose) is Reason.NO_SPAN


def test_digits_and_short_answers_are_given_away_as_words_alone() -> None:
    assert gives_away("Is it 5 or more?", "5") and not gives_away("Is it 15 or more?", "5")
    assert gives_away("Is it 1880/81?", "1880") and not gives_away("Is it 18805?", "1880")
    assert not gives_away("What of the environment?", "iron")
    assert not gives_away("Was it big on Aruba?", "no") and not gives_away("Which 15 seas?", "51")
    assert not gives_away("中山市在哪个国家？", "中国")


def test_readers_of_whom_nothing_can_be_read_decide_nothing_and_know_nothing() -> None:
    for opened, reason in ((None, Reason.UNREAD), ("a", None)):
        said = [
            ReaderAnswer(answer=opened, f1=1.0, is_open=True),
            ReaderAnswer(answer=None, f1=0.0, is_open=False),
        ]
        assert refused_by_readers(said, TasksConfig()) is reason


def readings(opened: str, closed: str) -> tuple[ReaderAnswer, ...]:
    said = {"y": 1.0, "n": 0.0}
    return tuple(
        ReaderAnswer(answer="a", f1=said[each], is_open=row < len(opened))
        for row, each in enumerate(opened + closed)
    )


@pytest.mark.parametrize(
    "opened, closed, reason",
    [
        ("nnny", "nn", None),
        ("nnnn", "nn", Reason.MISREAD),
        ("yyyy", "ny", Reason.KNOWN),
        ("nnnn", "yy", Reason.MISREAD),
    ],
)
def test_readers_refuse_what_nobody_finds_and_what_is_known(
    opened: str, closed: str, reason: Reason | None
) -> None:
    assert refused_by_readers(readings(opened, closed), TasksConfig()) is reason


class Library:
    """Always finds the document, and a neighbour."""

    identity = "library"

    async def search(self, query: str, topk: int) -> list[Passage]:
        near = Passage(id="d9", title="Curaçao: geography", text="Its capital is Willemstad.")
        return [Passage(id=ARUBA.id, title=ARUBA.title, text=ARUBA.text), near]


def written(said: str, says: Callable[[str, Key], str], **limits: int) -> CandidateRecords:
    """The candidate that a Challenger's words make, with a Solver that says something to a prompt."""
    codec = WordCodec()

    def answer(prompt: str, key: Key) -> str:
        return f"<answer>{says(prompt, key)}</answer>"

    solver = PolicyFormat(codec, dialect("qwen2.5"), "S_0", RolloutLimits(**{"max_response": 500} | limits))
    trial = SolverTrial(Player(ScriptedModel(codec, answer, identity="S_0"), solver), 4, window=True)
    context = RunContext(
        RunConfig(), load_pack(PROMPTS / "short"), Library(), MeteredJudge(VerifierJudge()), ()
    )  # type: ignore[arg-type]
    rollout = Rollout(id="c1", role=Role.CHALLENGER, checkpoint="C_0", subject_id="d1", turns=(), task=said)
    source = TaskSource(document=ARUBA, task_type="short_answer", search_turns=1)
    return asyncio.run(TaskWriter(context, trial, PROVENANCE, (0, 1, "tasks")).judge(source, rollout))


def test_a_task_keeps_its_answer_its_place_and_what_readers_said() -> None:
    def says(prompt: str, key: Key) -> str:
        if "reads" in key:
            return "Oranjestad" if "Willemstad" in prompt else "Paris"
        return "Oranjestad" if int(str(key[-2])) < 2 else "Willemstad"

    made = written(ASKED, says)
    candidate = made.candidate
    assert candidate.task is not None and candidate.rubric is not None
    assert (candidate.reason, candidate.mean) == (Reason.ACCEPTED, 0.5)
    assert (candidate.task.text, candidate.task.reference) == ("What is the capital of Aruba?", "Oranjestad")
    assert candidate.task.span is not None and ARUBA.text[slice(*candidate.task.span)] == "Oranjestad"
    assert [each.check for each in candidate.rubric.criteria] == [Check.TEXT]
    assert [each.f1 for each in candidate.readings] == [1.0] * 4 + [0.0] * 2
    assert len(made.grades) == 4 and all(
        verdict.attempts == 0 for each in made.grades for verdict in each.verdicts
    )


def test_a_reader_that_always_says_the_first_sentence_earns_nothing() -> None:
    """It lets no other answer through, and to that one it is no question: the Solver is always right."""

    def says(prompt: str, key: Key) -> str:
        return "north of Venezuela" if "lies" in prompt or "reads" not in key else "nowhere"

    assert written(ASKED, says).candidate.reason is Reason.MISREAD
    made = written("Where does Aruba lie? | north of Venezuela", says).candidate
    assert (made.reason, made.mean) == (Reason.TOO_EASY, 1.0)
    settings = ChallengerConfig(reward="frontier")
    assert frontier_reward(1.0, made.mean, 0.0, settings) <= frontier_reward(1.0, 0.5, 0.0, settings) / 2


@pytest.mark.parametrize(
    "max_prompt, shown, reason",
    [
        (70, "Oranjestad Willemstad", Reason.TOO_HARD),
        (53, "Oranjestad", Reason.TOO_HARD),
        (9, "", Reason.PROMPT_TOO_LONG),
    ],
)
def test_readers_have_the_document_open_and_as_many_neighbours_as_fit(
    max_prompt: int, shown: str, reason: Reason
) -> None:
    read = set[str]()

    def says(prompt: str, key: Key) -> str:
        if "reads" not in key:
            return "nobody knows"
        read.update(re.findall("Oranjestad|Willemstad", prompt))
        return "Oranjestad" if "Oranjestad" in prompt else "nobody knows"

    made = written(ASKED, says, max_response=8, max_prompt=max_prompt).candidate
    assert (made.reason, " ".join(sorted(read))) == (reason, shown)


def test_what_a_solver_knows_without_a_passage_is_no_task() -> None:
    assert written(ASKED, lambda prompt, key: "Oranjestad").candidate.reason is Reason.KNOWN


def test_a_challenger_that_always_asks_the_same_earns_at_most_half() -> None:
    settings = ChallengerConfig(reward="frontier")
    same = [f"What is the capital of {name}?" for name in ("Aruba", "Malta", "Chad", "Mali")]
    wide = [
        *same[:1],
        "Which sea borders Malta?",
        "When did Chad become independent?",
        "Who wrote the anthem of Mali?",
    ]
    assert shares_alike(same, same) == [1.0] * 4
    assert shares_alike(wide, wide) == [0.0] * 4
    best = frontier_reward(1.0, 0.5, 0.0, settings)
    assert frontier_reward(1.0, 0.5, 1.0, settings) <= best / 2
    # What is no task is like none, and one alone like none beside it.
    assert (
        shares_alike(["", same[0]], [*same[:1], *wide[1:3]])
        == shares_alike(["", "Why?"], ["Why?"])
        == [0.0, 0.0]
    )


@pytest.mark.parametrize(
    "asks, names",
    [
        ("What is the cap\u200bital of {}?", "Aruba Malta Chad"),
        ("Whát is the càpital of {}?", "Aruba Malta Chad"),
        ("{}: capital?", "Aruba Malta Chad"),
        ("{}的首都是哪里？", "阿塞拜疆共和国 乌兹别克斯坦 马耳他"),
        ("{}의 수도는 어디인가?", "아루바 몰타 대한민국"),
        ("ما عاصمة {}؟", "أروبا مالطا تشاد"),
        ("{}'nin başkenti neresidir?", "Türkiye Malta Çad"),
    ],
)
def test_names_in_any_script_make_no_other_question(asks: str, names: str) -> None:
    asked = [without_subject(asks.format(each), f"{each}: geography") for each in names.split()]
    asked[0] = without_subject(asks.replace("\u200b", "").format(names.split()[0]), names.split()[0])
    assert shares_alike(asked, asked) == [1.0] * 3


def test_german_nouns_tell_tasks_apart_and_its_names_do_not() -> None:
    capitals = [f"Was ist die Hauptstadt von {name}?" for name in ("Aruba", "Malta", "Chile")]
    others = ["Welches Gebirge liegt in der Mitte von Chile?", "Wer schrieb die Hymne von Mali und wann?"]
    assert shares_alike(capitals, [*capitals, *others]) == [0.5] * 3
    assert shares_alike(["Was ist die Hymne von Mali?"], [*capitals, "Was ist die Hymne von Mali?"]) == [0.0]
    # Candidates without a task are no tasks that nothing is beside.
    made = [written(each, lambda prompt, key: "x").candidate for each in ("Why? | none", ASKED)]
    made[0] = made[0].model_copy(update={"task": None})
    assert task_metrics(made, [0.0, 1.0], [0.0, 0.5], ChallengerConfig(), TasksConfig())["alike"] == Mean.of(
        [0.5]
    )


def test_the_frontier_is_where_half_of_the_tries_are_right() -> None:
    settings = ChallengerConfig(reward="frontier")
    rewards = [frontier_reward(1.0, right, 0.25, settings) for right in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert rewards == pytest.approx([0.5, 1.0, 1.25, 1.0, 0.5])
    # What a gate refused earns its format, as does what is always right; without format nothing does.
    assert frontier_reward(1.0, None, 0.5, settings) == 0.5
    assert frontier_reward(0.0, 0.5, 0.0, settings) == 0.0


@pytest.mark.parametrize(
    "answer, reference, found",
    [
        ("about 1,880 m", "1880", 1.0),
        ("188", "1880", 0.0),
        ("none", "1880", 0.0),
        ("1895", "1880 m", 1.0),
        ("In 2000.", "1990", 0.0),
        ("In 1990.", "in 1990", 1.0),
        ("3", "three", None),
        ("12.5 °C", "−12.5 °C", 0.0),
        ("−12.5 °C", "-12.5 °C", 1.0),
        ("7 November 1867", "7 November 1867", 1.0),
        ("1410年", "1420年", 0.0),
    ],
)
def test_numbers_are_compared_within_a_hundredth(answer: str, reference: str, found: float | None) -> None:
    assert number_match(answer, reference) == found
