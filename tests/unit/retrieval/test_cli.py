import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.commands import index, serve_retriever
from scope_selfplay.base.errors import ConfigError


def test_build_and_check_of_a_bm25_index(tmp_path: Path, corpus: Path) -> None:
    run, folder = CliRunner(), str(tmp_path / "index")
    built = run.invoke(index, ["build", str(corpus), folder], catch_exceptions=False)
    assert built.exit_code == 0
    assert "10 passages" in built.stdout
    assert "estimate" in built.stderr
    assert "files intact" in run.invoke(index, ["check", folder], catch_exceptions=False).stdout
    record = json.loads(run.invoke(index, ["check", folder, "--json"], catch_exceptions=False).stdout)
    assert (record["kind"], record["rows"]) == ("bm25", 10)


def test_chunks_are_passages(tmp_path: Path, corpus: Path) -> None:
    arguments = ["build", str(corpus), str(tmp_path / "index"), "--chunk-words", "10"]
    built = CliRunner().invoke(index, arguments, catch_exceptions=False)
    assert "30 passages" in built.stdout


def test_an_estimate_alone_builds_nothing(tmp_path: Path, corpus: Path) -> None:
    arguments = ["build", str(corpus), str(tmp_path / "index"), "--estimate-only"]
    done = CliRunner().invoke(index, arguments, catch_exceptions=False)
    assert "memory" in done.stderr
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("token", ["two\nlines", "a\x07b", "\udcff"])
def test_a_token_that_no_header_can_carry_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", token)
    done = CliRunner().invoke(serve_retriever, ["folder", "--token-env", "TOKEN"])
    assert isinstance(done.exception, ConfigError)
    assert "TOKEN holds a line break" in str(done.exception)


def test_words_are_indexed_and_served_without_faiss() -> None:
    """The extra `local` has BM25 and no FAISS."""
    code = (
        "import sys; sys.modules['faiss'] = None; import retrieval.build, retrieval.server, retrieval.workers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
