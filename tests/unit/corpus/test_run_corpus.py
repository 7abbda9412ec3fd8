"""Chunks of documents fit into the Challenger's prompt, or the run does not begin."""

import gzip
import json
from pathlib import Path

import pytest

from retrieval.corpus import read_documents as read_for_index
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.sampling import Message
from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import CorpusConfig, RunConfig
from scope_selfplay.corpus.read import read_run_corpus
from scope_selfplay.corpus.sample import TaskSource
from scope_selfplay.dialects.families import dialect
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import chunk_size, open_run, prompt_tokens, run_documents, task_types_of
from scope_selfplay.run.candidate import challenger_opening
from tests.models import write_model
from tests.word_codec import WordCodec

PACK = load_pack(Path(__file__).parents[3] / "prompts" / "wikipedia")


def size_of(config: RunConfig) -> int:
    return chunk_size(config, PACK, task_types_of(config, PACK), WordCodec())


def test_a_chunk_takes_what_the_longest_prompt_leaves_and_at_most_700_tokens() -> None:
    config = load_config(None)
    prompt = prompt_tokens(config, PACK, task_types_of(config, PACK), WordCodec())
    assert size_of(config) == min(700, 1024 - prompt - 8) < 700
    assert size_of(load_config(None, ["challenger.max_prompt=2048"])) == 700
    assert size_of(load_config(None, ["corpus.chunk_tokens=100"])) == 100


def test_a_chunk_that_does_not_fit_is_refused_with_what_would() -> None:
    """Table 9 gives the Challenger 1,024 tokens of prompt."""
    with pytest.raises(ConfigError) as error:
        size_of(load_config(None, ["corpus.chunk_tokens=700"]))
    assert "corpus.chunk_tokens=700 does not fit" in str(error.value) and "max_prompt is 1024" in str(
        error.value
    )
    assert "set corpus.chunk_tokens to at most" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"a document does not fit .* raise challenger.max_prompt to"):
        size_of(load_config(None, ["challenger.max_prompt=200"]))


def test_a_run_begins_with_chunks_that_fit_and_not_with_others(tmp_path: Path) -> None:
    text = " ".join(f"Sentence {number} is about the river." for number in range(400))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "river.md").write_text(f"# The river\n\n{text}\n")
    settings = [f"model.path={write_model(tmp_path / 'model')}", f"corpus.path={tmp_path / 'docs'}"]
    settings += ["domain=support", "challenger.max_prompt=4096"]
    with pytest.raises(ConfigError, match="does not fit into the Challenger's prompt"):
        open_run(load_config(None, [*settings, "corpus.chunk_tokens=4000"]), tmp_path / "runs", Progress())
    assert not (tmp_path / "runs").exists()
    run = open_run(load_config(None, settings), tmp_path / "runs", Progress())
    assert len(run.documents) > 1
    codec = run.codec
    for document in run.documents:
        for kind in task_types_of(run.config, run.pack):
            opening = challenger_opening(
                run.pack, dialect("qwen2.5").search_syntax, TaskSource(document, kind.name, 3)
            )
            assert len(codec.encode_prompt([Message("user", opening)])) <= 4096


def test_a_run_reads_the_passages_that_an_index_is_built_from(tmp_path: Path) -> None:
    """The 2018 Wikipedia of DPR (Table 9): id, text and title, quoted as CSV is."""
    path = tmp_path / "psgs_w100.tsv.gz"
    lines = 'id\ttext\ttitle\n1\t"He said ""no"" twice."\t"A ""B"" C"\n2\tplain\tTitle\n'
    path.write_bytes(gzip.compress(lines.encode()))
    settings = [f"model.path={write_model(tmp_path / 'model')}", "challenger.max_prompt=8192"]
    config = load_config(None, [*settings, f"corpus.path={path}"])
    documents = run_documents(config, PACK)
    assert documents == list(read_for_index(path))
    assert [document.title for document in documents] == ['A "B" C', "Title"]
    sampled = config.model_copy(update={"corpus": config.corpus.model_copy(update={"sample": 1})})
    assert len(run_documents(sampled, PACK)) == 1


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
    # A small one is cut without a word.
    assert said_while_cutting(tmp_path, 1) == []
