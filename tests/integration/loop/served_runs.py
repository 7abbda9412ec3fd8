"""The whole loop in miniature under a served judge that logs its calls, so that what a fault costs can be counted."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from scope_selfplay.base.errors import ScopeError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.driver.local import run_all
from scope_selfplay.judge import model as run_key
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.testing.chat_server import FakeServer, FaultPlan
from tests.integration.loop.test_run import config_of, in_child
from tests.integration.serving.threads import in_thread
from tests.kills import die_before_write

CONCURRENCY = 4
# Metrics that time does not change.
REWARDS = ("step", "reward", "reward_std", "loss", "rubric")


class CallLog:
    """A judge that logs its calls, and kills the process that it serves when the call number `kill_at` arrives."""

    def __init__(self, judge: LexicalJudge) -> None:
        self.paid: Counter[tuple[str, object]] = Counter()
        self.kill_at: int | None = None
        self.client = 0
        self.model = judge.identity
        self._judge = judge
        self._since = 0

    def expect(self, client: int, kill_at: int | None) -> None:
        self.client, self.kill_at, self._since = client, kill_at, 0

    async def __call__(self, request: ServedRequest) -> ServedReply:
        if request.body.get("max_tokens") != 1:
            self.paid[request.prompt, request.body.get("seed")] += 1
            self._since += 1
            if self._since == self.kill_at:
                os.kill(self.client, signal.SIGKILL)
        return await judged_reply(self._judge, request)

    @property
    def again(self) -> int:
        return self.paid.total() - len(self.paid)


@contextmanager
def served_judge(policy: Path, plan: FaultPlan | None = None) -> Iterator[tuple[CallLog, FakeServer, str]]:
    config = config_of(policy)
    log = CallLog(LexicalJudge(embedded_documents(config.seed, config.corpus)))
    fake = FakeServer(log, plan=plan, model=log.model)
    with in_thread(fake.serving()) as url:
        yield log, fake, url


def run_served(policy: Path, root: Path, url: str, kill_before: int | None, *settings: str) -> None:
    """A whole run in this process; all runs mark their judge's texts with one key, so that their calls are the same."""
    run_key.secrets = SimpleNamespace(token_bytes=bytes, token_hex=lambda size: str(os.getpid()))  # type: ignore[attr-defined]
    served = ("judge.kind=model", f"judge.endpoint.base_url={url}", f"judge.concurrency={CONCURRENCY}")
    writes = die_before_write(kill_before)
    try:
        run_all(open_run(config_of(policy, *served, *settings), root, Progress()))
    except ScopeError as error:
        (root / "said").write_text(str(error))
        sys.exit(error.exit_code)
    (root / "writes").write_text(str(writes()))


def start_served(log: CallLog, *given: object, kill_at: int | None = None) -> int:
    """The exit code of `run_served` in a process of its own, which its judge may kill."""
    return in_child(run_served, *given, begun=lambda process: log.expect(process, kill_at))


def records(root: Path) -> dict[str, bytes]:
    """Everything that a run made, but for what tells the time: records, weights, rewards of every step, ratings."""
    run = RunFolder(root / "tiny")
    found = {}
    for stage in sorted(run.path.glob("iteration-*/[!.]*")):
        assert (stage / "manifest.json").exists(), stage
        for path in sorted(stage.rglob("*")):
            name = str(path.relative_to(run.path))
            if path.name == "metrics.jsonl":
                lines = [{key: row.get(key) for key in REWARDS} for row in read_rows(path)]
                found[name] = "\n".join(map(json.dumps, lines)).encode()
            elif path.suffix in (".jsonl", ".safetensors") or path.name in ("documents.json", "ratings.json"):
                # A verdict that was paid for before a kill comes out of the cache after it.
                found[name] = path.read_bytes().replace(b'"cached":true', b'"cached":false')
    assert len(found) >= 15, sorted(found)
    return found
