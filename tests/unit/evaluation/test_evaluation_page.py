"""docs/evaluation.md says what there is, and what it tells a newcomer to write works as it stands."""

import re
from pathlib import Path

from scope_selfplay.evaluation.benchmarks import BENCHMARKS, load_benchmark
from scope_selfplay.evaluation.scorers import SCORERS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(heading: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in section(heading).split("\n") if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def blocks(heading: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(heading), re.MULTILINE | re.DOTALL)


def test_the_table_of_benchmarks_is_that_of_the_code() -> None:
    stated = {row[0].strip("`"): row[1:] for row in table("Benchmarks")}
    assert stated == {
        name: [each.title, each.source, " ".join(f"`{scorer}`" for scorer in each.scorers)]
        for name, each in BENCHMARKS.items()
    }


def test_the_table_of_scorers_is_that_of_the_code() -> None:
    words = {
        "answers": "right answers",
        "criteria": "a rubric",
        "given": "an answer to compare with",
    }
    stated = {row[0].strip("`"): row[1:] for row in table("Scorers")}
    assert stated.keys() == SCORERS.keys()
    for name, scorer in SCORERS.items():
        title, needs, asks = stated[name]
        assert (title, asks) == (scorer.title, "yes" if scorer.asks_judge else "no")
        assert needs == words.get(scorer.needs, needs) and (scorer.needs in words) is (
            needs in words.values()
        )


def test_the_questions_of_the_page_are_scored_by_what_they_have(tmp_path: Path) -> None:
    (lines,) = blocks("Questions of your own", "json")
    path = tmp_path / "questions.jsonl"
    path.write_text(lines)
    loaded = load_benchmark(str(path))
    by_item = [[scorer.name for scorer in loaded.scorers_of(item)] for item in loaded.items]
    short = ["reference", "exact_match", "f1", "cover_exact_match"]
    assert by_item == [short, short, ["rubric"], ["win_rate"], ["rating"]]


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
