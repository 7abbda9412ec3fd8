"""A stage of the embedded run with its judge behind an endpoint: the same tasks, with faults and without."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode, JudgeError
from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.base.values import Candidate, CandidateStatus, Reason
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.judge.checks import CanaryVerdict, read_canaries
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.net.serve import Responder, ServedReply
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage
from scope_selfplay.testing.chat_server import GARBAGE, TRANSPORT, FakeServer, FaultPlan
from tests.integration.serving.threads import in_thread
from tests.judges import REPOSITORY

pytestmark = pytest.mark.integration

EMBEDDED = REPOSITORY / "scope_selfplay" / "embedded"
SMALL = ["compare.given=null", "compare.tasks=16", "corpus.sample=300"]


@pytest.fixture(scope="module", autouse=True)
def trains_here() -> None:
    pytest.importorskip("trl", reason="the train extra is not installed")
    if not (EMBEDDED / "policy" / "model.safetensors").exists():
        pytest.skip("the embedded policy is not there: make warm-start")


def _config(*settings: str) -> RunConfig:
    return load_config(EMBEDDED / "run.yaml", [*SMALL, *settings])


@contextmanager
def _served(plan: FaultPlan, reply: Responder | None = None) -> Iterator[tuple[FakeServer, str]]:
    """The lexical judge behind a faulty wire, in a thread, since a stage runs its own event loops."""
    config = _config()
    judge = LexicalJudge(embedded_documents(config.seed, config.corpus))
    fake = FakeServer(
        reply or (lambda request: judged_reply(judge, request)), plan=plan, model=judge.identity
    )
    with in_thread(fake.serving()) as url:
        yield fake, url


def _held_out(config: RunConfig, root: Path, progress: Progress | None = None) -> tuple[Run, list[Candidate]]:
    from scope_selfplay.stages.tasks import make_tasks

    run = open_run(config, root, progress or Progress())
    make_tasks(run, 0)
    return run, read_records(run.folder.stage(0, Stage.TASKS).candidates, Candidate)


def _what_counts(candidate: Candidate) -> dict[str, object]:
    gates = {gate.value: verdict.value for gate, verdict in candidate.gates.items()}
    rubric = [each.text for each in candidate.rubric.criteria] if candidate.rubric else None
    return {"id": candidate.id, "reason": candidate.reason, "gates": gates, "rubric": rubric}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    _, candidates = _held_out(_config("name=direct"), tmp_path_factory.mktemp("direct"))
    return [_what_counts(each) for each in candidates]


def test_two_settings_give_the_same_tasks_and_a_second_run_pays_nothing(
    undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    # One task at a time: what is under way beyond the last one that is needed would be asked again.
    settings = ["judge.kind=model", f"judge.cache={tmp_path / 'judgements.sqlite'}", "tasks.in_flight=1"]
    with _served(FaultPlan()) as (fake, url):
        config = _config(*settings, f"judge.endpoint.base_url={url}")
        run, candidates = _held_out(config, tmp_path / "first")
        assert [_what_counts(each) for each in candidates] == undisturbed
        assert json.loads((run.folder.stage(0, Stage.TASKS).path / "judge.json").read_text())["roles"][
            "rubric"
        ]
        paid = len(fake.requests)
        _, candidates = _held_out(config, tmp_path / "second")
        assert [_what_counts(each) for each in candidates] == undisturbed
        # Rubrics that cannot be written are unreadable, so they are asked for again.
        assert len(fake.requests) - paid <= 3 * sum(each["reason"] == "rubric" for each in undisturbed)


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_faults_leave_tasks_unresolved_and_never_decide_them(
    undisturbed: list[dict[str, object]], tmp_path: Path, share: float
) -> None:
    plan = FaultPlan.evenly((*GARBAGE, *TRANSPORT), share)
    with _served(plan) as (fake, url):
        config = _config("judge.kind=model", f"judge.endpoint.base_url={url}", "judge.failure_budget=1")
        _, candidates = _held_out(config, tmp_path)
    # How many is the draw of a run's own fences.
    assert fake.injected.total() > 0
    _check(candidates, undisturbed)


def test_a_judge_of_garbage_stops_the_stage_and_the_same_command_goes_on(
    undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    with _served(FaultPlan.evenly(GARBAGE, 0.6)) as (fake, url):
        config = _config("judge.kind=model", f"judge.endpoint.base_url={url}")
        with pytest.raises(JudgeError, match=r"failed, judge\.failure_budget|failed \("):
            _held_out(config, tmp_path)
        assert fake.injected.total() > 10
    with _served(FaultPlan()) as (fake, url):
        config = _config("judge.kind=model", f"judge.endpoint.base_url={url}")
        run, candidates = _held_out(config, tmp_path)
    # What the garbage left unresolved was tried again. A task that one gate refused needs no answer of the other's.
    assert [each.id for each in candidates] == [each["id"] for each in undisturbed]
    assert not [each for each in candidates if each.status is CandidateStatus.UNRESOLVED]
    _check(candidates, undisturbed)
    verdicts = [verdict for each in candidates for verdict in each.gates.values()]
    unread = sum(verdict.value is None for verdict in verdicts)
    account = json.loads((run.folder.stage(0, Stage.TASKS).path / "judge.json").read_text())
    assert {"gate_entity", "gate_source"} <= account.pop("roles").keys()
    assert account == {"calls": len(verdicts), "unreadable": unread, "failed": unread}


def test_canaries_change_no_task_of_the_embedded_run_and_join_none_of_its_records(
    undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    said: list[str] = []
    run, candidates = _held_out(_config("judge.canaries.rate=0.25"), tmp_path, LineProgress(said.append))
    assert [_what_counts(each) for each in candidates] == undisturbed
    canaries = read_canaries(run.folder, 0, Stage.TASKS)
    gates = sum(len(each.gates) for each in candidates)
    assert gates / 4 - 2 <= len(canaries) <= gates and all(each.is_right for each in canaries)
    assert f"canaries {len(canaries)} of {len(canaries)} right (gates" in "\n".join(said)
    stage = run.folder.stage(0, Stage.TASKS).path
    texts = [path.read_bytes() for path in stage.rglob("*") if path.is_file()]
    assert not any(each.shown.encode() in text for each in canaries if not each.expected for text in texts)
    assert json.loads((stage / "judge.json").read_text())["calls"] == gates


def test_a_server_with_the_wrong_model_stops_the_stage_and_the_right_one_goes_on(
    undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    """Whatever it is asked it passes: readable, never a fault, and worth nothing."""
    settings = ["judge.kind=model", "judge.canaries.rate=0.25", "judge.cache=null", "judge.failure_budget=1"]
    with _served(FaultPlan(), lambda request: ServedReply("<score>1</score>")) as (_, url):
        config = _config(*settings, f"judge.endpoint.base_url={url}")
        with pytest.raises(JudgeError, match=r"the judge fails its canaries \(gates") as stopped:
            _held_out(config, tmp_path)
        assert stopped.value.exit_code is ExitCode.OUTSIDE
    folder = tmp_path / config.name / "iteration-00" / "tasks"
    assert f"remove {folder}" in str(stopped.value)
    shutil.rmtree(folder)
    with _served(FaultPlan()) as (_, url):
        run, candidates = _held_out(_config(*settings, f"judge.endpoint.base_url={url}"), tmp_path)
    assert [_what_counts(each) for each in candidates] == undisturbed
    # What was said before stays to be read; only the newer start counts for whether it goes on.
    starts = [path.name for path in sorted(run.folder.canaries.iterdir())]
    assert starts == ["00-tasks-000.jsonl", "00-tasks-001.jsonl"]
    before, after = (read_records(run.folder.canaries / name, CanaryVerdict) for name in starts)
    assert not all(each.is_right for each in before) and all(each.is_right for each in after)


def _check(candidates: list[Candidate], undisturbed: list[dict[str, object]]) -> None:
    """Everything that was read is what it would have been, and what was decided was decided by it."""
    truth = {str(each["id"]): each for each in undisturbed}
    compared = 0
    for candidate in candidates:
        if candidate.id not in truth:
            continue
        found, expected = _what_counts(candidate), truth[candidate.id]
        gates = expected["gates"]
        assert isinstance(gates, dict)
        assert all(verdict.value in (None, gates[gate.value]) for gate, verdict in candidate.gates.items())
        assert found["rubric"] in (None, expected["rubric"])
        if candidate.status is not CandidateStatus.UNRESOLVED:
            assert (candidate.reason is Reason.ACCEPTED) == (expected["reason"] is Reason.ACCEPTED)
            compared += 1
    assert compared >= 16
