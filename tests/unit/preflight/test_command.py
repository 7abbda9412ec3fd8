"""`scope preflight` and the same look before `scope run` begins: one table, nothing written, exit codes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, Finding, OutsideError, State, raise_for_stops
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.plan.preflight import budgets, examine_for_cluster
from tests.engines import served


@pytest.fixture
def other_index() -> Iterator[str]:
    """The URL of a retriever that has 26 passages about something else."""

    row = {"document": {"id": "x", "contents": '"Else"\nSomething else.'}, "score": 1.0}
    about = {"identity": "bm25-other", "kind": "bm25", "rows": 26, "corpus_hash": "other"}
    with served(lambda method, path, body: (200, about if method == "GET" else {"result": [[row]]})) as url:
        yield url


def checks_of(tmp_path: Path, *settings: str) -> tuple[int, dict[str, dict[str, object]]]:
    words = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(cli, ["preflight", "--root", str(tmp_path / "runs"), "--json", *words])
    code = getattr(done.exception, "exit_code", 0) if done.exception else 0
    assert not (tmp_path / "runs").exists()
    return int(code), {row["where"]: row for row in json.loads(done.stdout)}


def test_the_laptops_run_passes_and_says_what_it_will_take(tmp_path: Path) -> None:
    code, found = checks_of(tmp_path)
    assert code == 0 and {row["state"] for row in found.values()} == {"ok"}
    # How many is the shipped config's business.
    documents = r"[\d,]+ and [\d,]+ for held-out tasks; [\d,]+ needed if every one gives a task"
    assert re.match(documents, str(found["documents"]["what"]))
    assert "rollouts" in str(found["calls and time"]["what"]) and "free in" in str(found["disk"]["what"])


def test_an_index_of_other_passages_stops_a_run(tmp_path: Path, other_index: str) -> None:
    code, found = checks_of(tmp_path, f"search.url={other_index}")
    assert code == 64 and found["retriever"]["state"] == "stop"
    assert "26 passages; 0 of 8 of the run's " in str(found["retriever"]["what"])
    assert "scope index build CONFIG INDEX" in str(found["retriever"]["advice"])


def test_a_server_that_is_down_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    settings = ("search.url=http://127.0.0.1:9", "search.outage=0.2")
    code, found = checks_of(tmp_path, *settings)
    assert code == 75 and found["retriever"]["is_outside"] is True
    run = CliRunner().invoke(
        cli, ["run", "--root", str(tmp_path / "runs"), *(w for each in settings for w in ("--set", each))]
    )
    assert isinstance(run.exception, OutsideError) and not (tmp_path / "runs").exists()


def test_what_the_user_can_change_is_said_first() -> None:
    down = Finding("judge", "does not answer", State.STOP, is_outside=True)
    few = Finding("documents", "39", State.STOP, "add more")
    with pytest.raises(
        ConfigError, match=r"^documents: 39; add more \(and 1 more: `scope preflight` shows all\)$"
    ):
        raise_for_stops([down, few, Finding("disk", "little", State.WARNING)])
    with pytest.raises(OutsideError, match=r"^judge: does not answer$"):
        raise_for_stops([down])
    raise_for_stops([Finding("disk", "little", State.WARNING)])


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("model.max_length=2000", "challenger budget"),
        ("search.max_tokens=9000", "search budget"),
        ("corpus.chunk_tokens=64", "chunks"),
    ],
)
def test_budgets_that_cut_something_off_are_named(setting: str, what: str) -> None:
    assert what in {
        check.where for check in budgets(load_config(None, [setting])) if check.state is State.WARNING
    }
    assert {check.state for check in budgets(load_config(None))} == {State.OK}


def test_a_clusters_run_is_checked_as_far_as_it_is_known_from_elsewhere() -> None:
    few = load_config(None, ["corpus.path=embedded", "corpus.sample=100"])
    assert [check.where for check in examine_for_cluster(few) if check.state is State.STOP] == ["documents"]
    far = load_config(None, ["corpus.path=/data/corpus.jsonl", "model.path=Qwen3-8B"])
    found = {check.where: check for check in examine_for_cluster(far)}
    assert "on the run's volume and not counted" in found["documents"].what
    assert "GPU hours" in found["calls and time"].what
