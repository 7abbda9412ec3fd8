"""`scope index build RUN.yaml`: an index of exactly the documents that a run of this config searches."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from retrieval.folder import Verify, read_manifest
from retrieval.passages import Passages
from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.run.begin import run_documents
from scope_selfplay.run.commands import documents, index


def test_an_index_of_a_runs_config_has_the_runs_passages(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="needs the retrieval extra")
    pytest.importorskip("transformers", reason="needs the train extra")
    lines = [
        json.dumps({"id": str(n), "title": f"T{n}", "text": "One or two words. " * 300}) for n in range(3)
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    config = tmp_path / "run.yaml"
    settings = {"corpus": {"path": str(tmp_path / "corpus.jsonl")}, "challenger": {"max_prompt": 4000}}
    config.write_text(json.dumps(settings))
    done = CliRunner().invoke(
        index, ["build", str(config), str(tmp_path / "index"), "--set", "corpus.chunk_tokens=200"]
    )
    assert done.exit_code == 0, done.output
    words = [str(config), "--json", "--set", "corpus.chunk_tokens=200"]
    listed = CliRunner().invoke(documents, words)
    assert listed.exit_code == 0, listed.output
    run = load_config(config, ["corpus.chunk_tokens=200"])
    read = run_documents(run, load_pack(pack_path(run.domain)))
    manifest = read_manifest(tmp_path / "index", Verify.SIZES)
    assert [json.loads(line) for line in listed.stdout.splitlines()] == [each.model_dump() for each in read]
    assert manifest.rows == len(read) > 3
    assert manifest.corpus_hash == Passages.from_documents(read).corpus_hash


def test_settings_belong_to_a_config(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "title": "A", "text": "x"}\n')
    words = ["build", str(tmp_path / "corpus.jsonl"), str(tmp_path / "index"), "--set", "seed=1"]
    done = CliRunner().invoke(index, words, standalone_mode=False)
    assert isinstance(done.exception, click.UsageError) and "SOURCE is none" in str(done.exception)
    done = CliRunner().invoke(documents, [words[1], "--set", "seed=1"], standalone_mode=False)
    assert isinstance(done.exception, click.UsageError) and "PATH is none" in str(done.exception)
