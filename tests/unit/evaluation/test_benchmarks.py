"""Every benchmark reads its authors' file, and a wrong one is named with line and field; what every scorer gives."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Criterion, Outcome, RolloutStatus, Verdict
from scope_selfplay.evaluation.benchmarks import BENCHMARKS, load_benchmark
from scope_selfplay.evaluation.rows import Item, ItemCriterion
from scope_selfplay.evaluation.scorers import SCORERS, Answer, AnswerScore, score_answer
from scope_selfplay.judge.protocol import GradeQuestion, PairQuestion, Question, Reply, Scale, ScoreQuestion
from tests.unit.evaluation.contestants import UNREADABLE, answering

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "benchmarks"
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how" / "evaluation.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - {"own"}))
def test_a_benchmark_reads_ten_items_in_its_authors_format(name: str) -> None:
    places = [place for place in FIXTURES.glob(f"{name}*") if place.stem == name]
    assert places
    for place in places:
        loaded = load_benchmark(f"{name}={place}")
        assert len(loaded.items) == 10
        for item in loaded.items:
            assert [scorer.name for scorer in loaded.scorers_of(item)] == list(loaded.scorers)


def first(name: str, suffix: str = "") -> Item:
    return load_benchmark(f"{name}={FIXTURES / name}{suffix}").items[0]


def test_formats_of_one_benchmark_hold_the_same() -> None:
    """JSON lines, DPR's table without a head and parquet; for TriviaQA the authors' JSON and parquet."""
    for name, suffixes in (("nq", (".jsonl", ".csv", ".parquet")), ("triviaqa", (".json", ".parquet"))):
        assert len({first(name, suffix).answers for suffix in suffixes}) == 1
    assert first("nq", ".jsonl").answers == ("Ana Bell", "A. Bell")
    assert first("popqa", ".tsv").answers == ("Ana Bell", "A. Bell")
    assert first("musique", ".jsonl").group == "2hop"


def test_rubrics_keep_points_dimensions_and_what_they_are_compared_with() -> None:
    report = first("deep_research_bench")
    assert report.given is not None and report.given.startswith("A report on tides.")
    assert [(each.dimension, each.points) for each in report.criteria][:3] == [
        ("comprehensiveness", pytest.approx(0.18)),
        ("comprehensiveness", pytest.approx(0.12)),
        ("insight", pytest.approx(0.36 * 0.6)),
    ]
    assert sum(each.points for each in report.criteria) == pytest.approx(1)
    health = load_benchmark(f"healthbench={FIXTURES}/healthbench.jsonl").items[1]
    assert [each.points for each in health.criteria] == [7, 5, -6]
    assert health.rubric is not None and len(health.rubric.criteria) == 2
    assert (health.group, health.criteria[0].dimension) == ("emergency_referrals", "context_awareness")
    assert health.question.endswith("Assistant: How long have you had it?\n\nUser: Two days.")
    assert "9-10: Excellent order." in first("writingbench", ".jsonl").criteria[0].text
    assert first("arena_hard_cw").given == "The tides lay still."
    assert first("wildbench", ".parquet").group == "Creative Writing"


def test_choices_stand_in_an_order_of_their_own_and_the_letter_is_the_answer() -> None:
    items = load_benchmark(f"gpqa={FIXTURES}/gpqa.csv").items
    assert len({item.answers for item in items}) > 1
    for item in items:
        (line,) = [line for line in item.question.splitlines() if ") The law of" in line]
        assert line.startswith(item.answers[0]) and "\\boxed{A}" in item.question


def test_a_larger_file_is_sampled_by_the_seed_and_a_smaller_sample_lies_within_a_larger_one() -> None:
    def drawn(most: int, seed: int) -> list[str]:
        return [item.id for item in load_benchmark(f"nq={FIXTURES}/nq.jsonl", most=most, seed=seed).items]

    whole = drawn(10, 0)
    assert set(drawn(3, 0)) <= set(drawn(5, 0)) < set(whole) and drawn(5, 0) != drawn(5, 1)
    assert [each for each in whole if each in drawn(5, 0)] == drawn(5, 0)


def test_a_data_set_that_was_saved_to_disk_is_read_as_it_lies(tmp_path: Path) -> None:
    table = pyarrow.table({"question": ["Who?"], "answer": [["Ana"]]})
    with pyarrow.ipc.new_stream(str(tmp_path / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert load_benchmark(f"nq={tmp_path}").items[0].answers == ("Ana",)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("hotpotqa", "benchmark hotpotqa: give its file, hotpotqa=FILE; it is published as hotpot_dev"),
        ("hotpot", r"no benchmark 'hotpot' \(did you mean hotpotqa\?\); known: 2wiki"),
        ("{tmp}/none.py=nq.csv", r"none\.py: BENCHMARK must be a Benchmark, found NoneType"),
        ("nq=nowhere.jsonl", "nowhere.jsonl: not a file; expected a folder, or a file that ends in .jsonl"),
        ("nq={tmp}/a.xlsx", "a.xlsx: unknown format '.xlsx'"),
        ("nq={tmp}/empty", "empty: no data file in this folder"),
        ("nq={tmp}/broken.jsonl", "broken.jsonl:2: not JSON at character 1"),
        ("nq={tmp}/broken.json", "broken.json:2: not JSON"),
        ("nq={tmp}/broken.parquet", "broken.parquet: not parquet"),
        ("nq={tmp}/torn.csv", "torn.csv:2: 3 columns, the first line has 2"),
        ("nq={tmp}/latin.jsonl", "not UTF-8"),
        (
            "healthbench={tmp}/health.jsonl",
            r"health.jsonl:1: rubrics\[0\]: points: expected a number, found 'x'",
        ),
        ("deep_research_bench={tmp}/drb.jsonl", "drb.jsonl:1: dimension_weight: expected an object, found 3"),
        ("musique={tmp}/musique.jsonl", "no items for benchmark musique; expected musique_ans"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path: Path, asked: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    good = '{"question": "?", "answer": "x"}\n'
    texts = {
        "a.xlsx": "",
        "none.py": "x = 1\n",
        "broken.jsonl": good + "{,}\n",
        "broken.json": "[\n{,}]",
        "broken.parquet": "no",
        "torn.csv": "question,answer\na,b,c\n",
        "health.jsonl": '{"prompt": "?", "rubrics": [{"criterion": "c", "points": "x"}]}\n',
        "drb.jsonl": '{"id": 1, "prompt": "?", "dimension_weight": 3}\n',
        "musique.jsonl": '{"question": "?", "answer": "x", "answerable": false}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "caf\xe9", "answer": "x"}\n')
    with pytest.raises(ConfigError, match=message):
        load_benchmark(asked.replace("{tmp}", str(tmp_path)))


def written(folder: Path, *lines: object) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"questoin": "?"}, "mine.jsonl:2: questoin: unknown field"),
        ({"answer": "x"}, "mine.jsonl:2: question: missing"),
        ({"question": " "}, "mine.jsonl:2: question: expected a text, found ' '"),
        ({"question": "?", "answers": [{}]}, "mine.jsonl:2: answers: expected texts"),
        ({"question": "?", "answers": []}, "mine.jsonl:2: answer or answers: no text in it"),
        ({"question": "?", "rubric": 3}, "mine.jsonl:2: rubric: expected a list of objects"),
        (
            {"question": "?", "rubric": [{"text": "x", "weight": "y"}]},
            "mine.jsonl:2: rubric[0]: weight: expected a number",
        ),
        ({"question": "another", "id": "same"}, "mine.jsonl:2: id same was given at"),
    ],
)
def test_a_wrong_line_is_named_with_file_line_and_field(tmp_path: Path, line: object, message: str) -> None:
    path = written(tmp_path, {"question": "ok", "id": "same"}, line)
    with pytest.raises(ConfigError) as error:
        load_benchmark(str(path))
    assert message in str(error.value)


def blocks(heading: str, language: str) -> list[str]:
    """What docs/how/evaluation.md tells a newcomer to write."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_the_questions_of_the_page_are_scored_by_what_they_have(tmp_path: Path) -> None:
    (lines,) = blocks("Questions of your own", "json")
    (tmp_path / "questions.jsonl").write_text(lines)
    loaded = load_benchmark(str(tmp_path / "questions.jsonl"))
    by_item = [[scorer.name for scorer in loaded.scorers_of(item)] for item in loaded.items]
    short = ["reference", "exact_match", "f1", "cover_exact_match"]
    assert by_item == [short, short, ["rubric"], ["win_rate"], ["rating"]]
    _, several, rubric, *_ = loaded.items
    assert several.answers == ("an operator", "operators")
    assert [criterion.points for criterion in rubric.criteria] == [1, -2]


def test_the_benchmark_of_the_page_works_as_it_stands(tmp_path: Path) -> None:
    """What a newcomer copies: the table, the file, and nothing else."""
    benchmark, reader = blocks("Add a benchmark", "python")
    (data,) = blocks("Add a benchmark", "csv")
    (tmp_path / "capitals.py").write_text(benchmark)
    (tmp_path / "capitals.csv").write_text(data)
    loaded = load_benchmark(f"{tmp_path}/capitals.py={tmp_path}/capitals.csv")
    france, myanmar = loaded.items
    assert loaded.name == "capitals"
    assert france.question.startswith("France\n\nWhat is the capital of this country?")
    assert (france.answers, france.group) == (("Paris",), "Europe")
    assert myanmar.answers == ("Naypyidaw", "Nay Pyi Taw", "Naypyitaw")
    (tmp_path / "own.py").write_text(reader + benchmark.replace("Fields(", "(lambda **_: read)("))
    (tmp_path / "own.jsonl").write_text(
        '{"id": 1, "language": "en", "prompt": "Why?", "rubric": [{"text": "Says why.", "points": 2}]}\n'
        '{"id": 2, "language": "de", "prompt": "Warum?", "rubric": []}\n'
    )
    (item,) = load_benchmark(f"{tmp_path}/own.py={tmp_path}/own.jsonl").items
    assert [(criterion.text, criterion.points) for criterion in item.criteria] == [("Says why.", 2)]


ITEM = Item(
    id="q",
    question="What causes tides?",
    answers=("the Moon", "Moon and Sun"),
    criteria=(
        ItemCriterion(text="moon", points=3, dimension="facts"),
        ItemCriterion(text="sun", points=1),
        ItemCriterion(text="magnets", points=-2),
    ),
    given="The Moon, and the Sun too.",
)


class WordJudge:
    """Finds a criterion met where its words occur, marks by words, prefers the longer answer; `silent` fails on one."""

    identity = "words"

    def __init__(self, silent: str = "nothing at all") -> None:
        self.calls = 0
        self._silent = silent

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        self.calls += 1
        match question:
            case GradeQuestion(criterion=criterion, answer=answer):
                if criterion.text == self._silent:
                    return Reply(None, UNREADABLE)
                met = criterion.text in answer.lower()
                return Reply(met, Verdict(value=met))
            case ScoreQuestion(task, rollout=rollout, rubric=rubric, scale=scale):
                answer = (rollout.answer or "").lower()
                value = float(min(10, len(answer.split())))
                if scale is Scale.REFERENCE:
                    assert task.reference == "the Moon\nMoon and Sun"
                    value = 1.0 if "moon" in answer else 0.5 if "not know" in answer else 0.0
                elif isinstance(rubric, Criterion):
                    value = 10.0 * (rubric.text in answer)
                return Reply(value, Verdict(value=True))
            case PairQuestion(first=first, second=second):
                words = [float(len((each.answer or "").split())) for each in (first, second)]
                return Reply(Outcome(*words), Verdict(value=True))
        raise AssertionError(question)


async def scored(
    name: str, answer: str | None, *, item: Item = ITEM, judge: WordJudge | None = None, failed: bool = False
) -> AnswerScore:
    status = RolloutStatus.FAILED if failed else RolloutStatus.FINISHED
    given = Answer.of(answering("S", "q", answer, status), "S", "q", 0)
    asked: Any = judge or WordJudge()
    return await score_answer(SCORERS[name], item, given, judge=asked, key=("k",))


@pytest.mark.parametrize(
    ("name", "answer", "value"),
    [
        ("exact_match", "The moon.", 1.0),
        ("f1", "moon and magnets", 2 / 3),
        ("cover_exact_match", "It is the moon, they say.", 1.0),
        ("hotpot_f1", "moon", 1.0),
        ("trivia_exact_match", "The_Moon", 1.0),
        ("trivia_f1", "moon", 1.0),
        ("reference", "The moon does.", 1.0),
        ("rubric", "Moon and sun.", 1.0),
        ("rubric", "Moon and magnets.", 0.25),
        ("rubric", "Magnets.", -0.5),
        ("criteria_rating", "The moon.", 0.75),
        ("rating", "The moon does it.", 0.4),
        ("win_rate", "The moon.", 0.0),
        ("win_rate", "The moon and also the sun, I think.", 1.0),
        ("win_rate", "one two three four five six", 0.5),
        ("race", "moon and sun", 0.5),
        ("race", "moon", 3 / 7),
    ],
)
async def test_a_scorer_gives_what_the_answer_is_worth(name: str, answer: str, value: float) -> None:
    found = await scored(name, answer)
    assert found.value == pytest.approx(value)
    assert (found.scorer, found.judge) == (name, "words" if SCORERS[name].asks_judge else "")


@pytest.mark.parametrize(
    ("scorer", "answer", "value"),
    [
        ("choice", r"\boxed{\text{(C)}}", 1.0),
        ("choice", r"\boxed{A} no, \boxed{C}", 1.0),
        ("choice", r"\boxed{B or C}", 0.0),
        ("choice", "C", 0.0),
        ("choice", r"\boxed{Carbon}", 0.0),
        ("boxed", r"\boxed{12}", 1.0),
        ("boxed", "12", 0.0),
    ],
)
async def test_a_box_holds_one_letter_or_any_of_the_right_answers(
    scorer: str, answer: str, value: float
) -> None:
    item = Item(id="q", question="?", answers=("C",) if scorer == "choice" else ("7", "12"))
    assert (await scored(scorer, answer, item=item)).value == value


@pytest.mark.parametrize("name", sorted(SCORERS))
async def test_no_answer_is_worth_nothing_and_a_failed_rollout_is_not_scored(name: str) -> None:
    judge = WordJudge()
    for answer in (None, "", "  "):
        assert (await scored(name, answer, judge=judge)).value == 0.0
    assert (await scored(name, "The moon.", judge=judge, failed=True)).value is None
    assert judge.calls == 0


async def test_a_missing_verdict_is_left_out() -> None:
    found = await scored("rubric", "Moon.", judge=WordJudge(silent="sun"))
    assert (found.value, found.marks) == (1.0, (1.0, None, 0.0))


async def test_votes_are_by_what_a_box_holds_or_a_judge_with_the_reference_says() -> None:
    said = {"Moon": (1.0, "correct"), "I do not know": (0.0, "not_attempted"), "Magnets": (0.0, "incorrect")}
    for answer, (value, label) in said.items():
        found = await scored("reference", answer)
        assert (found.value, found.label) == (value, label)
    assert (await scored("boxed", r"It is \boxed{ 1 2 }.")).label == "12"
