"""What a person sees while a large corpus is cut: how much is done, how long it will take, and how it ended."""

import json
from pathlib import Path

from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus.read import read_run_corpus

SENTENCE = "One or two sentences that a corpus repeats. They are many. "


def said_while_cutting(folder: Path, documents: int) -> list[str]:
    corpus = folder / "corpus.jsonl"
    lines = (
        json.dumps({"id": str(number), "title": "T", "text": SENTENCE * 20_000})
        for number in range(documents)
    )
    corpus.write_text("\n".join(lines))
    said: list[str] = []
    pieces = read_run_corpus(
        CorpusConfig(path=str(corpus)),
        None,
        seed=0,
        size=lambda: 100,
        count=lambda texts: [len(text.split()) for text in texts],
        progress=LineProgress(said.append, every=0.0),
    )
    assert len(pieces) > documents
    return said


def test_a_large_corpus_is_cut_with_a_line_for_what_is_done(tmp_path: Path) -> None:
    first, *lines, last = said_while_cutting(tmp_path, 5)
    assert first == "cut 5 documents, in kB ..."
    done = [int(line.split(": ")[1].split("/")[0]) for line in lines]
    assert (
        len(done) == 5 and done == sorted(done) and lines[-1].startswith("cut 5 documents, in kB: 5899/5899 ")
    )
    assert "pieces" in last


def test_a_small_corpus_is_cut_without_a_word(tmp_path: Path) -> None:
    assert said_while_cutting(tmp_path, 1) == []
