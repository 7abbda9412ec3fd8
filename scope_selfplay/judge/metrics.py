"""What a judge did: metrics `scope_judge_*` for operators, an account per role for a stage's report."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter

from scope_selfplay.prompts import PromptRole
from scope_selfplay.schemas import Fault

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


def added(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of numbers that have the same names, level by level."""
    names = dict.fromkeys(name for report in reports for name in report)
    found = {name: [report[name] for report in reports if name in report] for name in names}
    return {
        name: added(values) if isinstance(values[0], Mapping) else sum(values)
        for name, values in found.items()
    }


class JudgeMetrics:
    """The judge's own account: counters since it was opened, in a registry of its own, and `accounts` of the stage."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "scope_judge", "registry": self._registry}
        self.calls = PrometheusCounter(
            "calls", "Judgements by outcome (read, or why not)", ["role", "outcome"], **ours
        )
        self.attempts = PrometheusCounter("attempts", "Completions asked for", ["role"], **ours)
        self.replies = PrometheusCounter(
            "replies",
            "Completions by where they came from (asked, cached, joined)",
            ["role", "source"],
            **ours,
        )
        self.tokens = PrometheusCounter("tokens", "Tokens paid for", ["role", "direction"], **ours)
        self.seconds = Histogram("call_seconds", "Seconds per judgement", ["role"], buckets=_SECONDS, **ours)
        self.completion_tokens = Histogram(
            "completion_tokens", "Tokens per completion", ["role"], buckets=_TOKENS, **ours
        )
        self.endpoint_faults = PrometheusCounter(
            "endpoint_faults", "Requests that gave no completion", ["fault"], **ours
        )
        self.canaries = PrometheusCounter(
            "canaries",
            "Questions with a known verdict, by what was said to them (right, wrong, unread)",
            ["role", "kind", "outcome"],
            **ours,
        )
        self.in_flight = Gauge("in_flight", "Requests on their way", **ours)
        self.breaker_open = Gauge("breaker_open", "1 while an endpoint is not asked", **ours)
        self.begin_stage()

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

    def count_canary(self, role: str, kind: str, outcome: str) -> None:
        """One question with a known verdict: its outcome is right, wrong or unread."""
        self.canaries.labels(role, kind, outcome).inc()

    def calls_and_faults(self) -> tuple[int, Counter[Fault]]:
        """The judgements of the stage, and the faults among them."""
        accounts = self.accounts.values()
        faults = Counter(fault for account in accounts for fault in account.faults.elements())
        return sum(account.calls for account in accounts), faults

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
