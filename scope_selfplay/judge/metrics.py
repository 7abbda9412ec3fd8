"""What a judge did: metrics `scope_judge_*` for operators, an account per role for a stage's report."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter

from scope_selfplay.prompts import PromptRole
from scope_selfplay.schemas import Fault

_PREFIX = "scope_judge_"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class Source(StrEnum):
    """Where a completion comes from."""

    ASKED = "asked"
    CACHED = "cached"
    JOINED = "joined"
    """From a call in flight that somebody else made."""


@dataclass
class RoleAccount:
    """One role's judgements in a stage; tokens only as far as they were paid for."""

    calls: int = 0
    attempts: int = 0
    cached: int = 0
    joined: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)

    def report(self) -> dict[str, object]:
        return {**vars(self), "faults": {fault.value: n for fault, n in sorted(self.faults.items())}}


class JudgeMetrics:
    """The judge's own account: counters since it was opened, in a registry of its own, and `accounts` of the stage."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.calls = self._counter("calls", "Judgements by outcome (read, or why not)", "role", "outcome")
        self.attempts = self._counter("attempts", "Completions asked for", "role")
        self.replies = self._counter(
            "replies", "Completions by where they came from (asked, cached, joined)", "role", "source"
        )
        self.tokens = self._counter("tokens", "Tokens paid for", "role", "direction")
        self.seconds = self._histogram("call_seconds", "Seconds per judgement", _SECONDS)
        self.completion_tokens = self._histogram("completion_tokens", "Tokens per completion", _TOKENS)
        self.endpoint_faults = self._counter("endpoint_faults", "Requests that gave no completion", "fault")
        self.in_flight = Gauge(_PREFIX + "in_flight", "Requests on their way", registry=self._registry)
        self.breaker_open = Gauge(
            _PREFIX + "breaker_open", "1 while an endpoint is not asked", registry=self._registry
        )
        self.begin_stage()

    def _counter(self, name: str, meaning: str, *labels: str) -> PrometheusCounter:
        return PrometheusCounter(_PREFIX + name, meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(_PREFIX + name, meaning, ["role"], buckets=buckets, registry=self._registry)

    def begin_stage(self) -> None:
        """Let the accounts of the stage begin at zero; what operators see goes on."""
        self.accounts: dict[PromptRole, RoleAccount] = defaultdict(RoleAccount)

    def count_judgement(self, role: PromptRole, fault: Fault | None, seconds: float) -> None:
        """One judgement that was read, or the fault why not, after so many seconds."""
        account = self.accounts[role]
        account.calls += 1
        if fault is not None:
            account.faults[fault] += 1
        self.calls.labels(role.value, "read" if fault is None else fault.value).inc()
        self.seconds.labels(role.value).observe(seconds)

    def count_reply(self, role: PromptRole, source: Source) -> None:
        """One completion that is about to be used, by where it comes from."""
        account = self.accounts[role]
        match source:
            case Source.ASKED:
                account.attempts += 1
                self.attempts.labels(role.value).inc()
            case Source.CACHED:
                account.cached += 1
            case Source.JOINED:
                account.joined += 1
        self.replies.labels(role.value, source.value).inc()

    def count_tokens(self, role: PromptRole, tokens_in: int, tokens_out: int) -> None:
        """The tokens of one completion that was paid for."""
        account = self.accounts[role]
        account.tokens_in += tokens_in
        account.tokens_out += tokens_out
        self.tokens.labels(role.value, "in").inc(tokens_in)
        self.tokens.labels(role.value, "out").inc(tokens_out)
        self.completion_tokens.labels(role.value).observe(tokens_out)

    def calls_and_faults(self) -> tuple[int, Counter[Fault]]:
        """The judgements of the stage, and the faults among them."""
        accounts = self.accounts.values()
        faults = Counter(fault for account in accounts for fault in account.faults.elements())
        return sum(account.calls for account in accounts), faults

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
