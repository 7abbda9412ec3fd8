"""Every benchmark reads its authors' file; a wrong file is named with file, line and field."""

import json
from pathlib import Path

import pyarrow
import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.evaluation.benchmarks import BENCHMARKS, load_benchmark
from scope_selfplay.evaluation.rows import Item

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "benchmarks"
NAMES = sorted(set(BENCHMARKS) - {"own"})
PUBLISHED = [
    (name, place) for name in NAMES for place in sorted(FIXTURES.glob(f"{name}*")) if place.stem == name
]


def test_every_benchmark_has_a_file_in_its_authors_format() -> None:
    assert [name for name in NAMES if name not in dict(PUBLISHED)] == []


@pytest.mark.parametrize(("name", "place"), PUBLISHED, ids=[place.name for _, place in PUBLISHED])
def test_a_benchmark_reads_ten_items_in_its_authors_format(name: str, place: Path) -> None:
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


def test_a_file_of_ones_own_that_has_no_benchmark_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"none\.py: BENCHMARK must be a Benchmark, found NoneType"):
        load_benchmark(f"{tmp_path}/none.py={tmp_path}/data.csv")


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


def test_questions_of_ones_own_have_an_answer_answers_or_a_rubric(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"question": "Capital of France?", "answer": "Paris"},
        {"question": "Author?", "answers": ["A. B.", "A B"]},
        {"question": "Tides?", "rubric": ["Names the Moon.", {"text": "Blames magnets.", "weight": -2}]},
    )
    one, several, rubric = load_benchmark(str(path)).items
    assert (one.answers, several.answers) == (("Paris",), ("A. B.", "A B"))
    assert [criterion.points for criterion in rubric.criteria] == [1, -2]


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
