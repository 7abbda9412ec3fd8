"""What a judge did: metrics `scope_judge_*` for operators, an account per role for a stage's report."""

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter

from scope_selfplay.schemas import Fault

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class JudgeMetrics:
    """In a registry of its own, so that several judges can live in one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        name = "scope_judge_"
        self.calls = PrometheusCounter(
            name + "calls", "Judgements by outcome (read, or why not)", ["role", "outcome"], registry=registry
        )
        self.attempts = PrometheusCounter(
            name + "attempts", "Completions asked for", ["role"], registry=registry
        )
        self.replies = PrometheusCounter(
            name + "replies",
            "Completions by where they came from (asked, cached, joined)",
            ["role", "source"],
            registry=registry,
        )
        self.tokens = PrometheusCounter(
            name + "tokens", "Tokens paid for", ["role", "direction"], registry=registry
        )
        self.seconds = Histogram(
            name + "call_seconds", "Seconds per judgement", ["role"], buckets=_SECONDS, registry=registry
        )
        self.completion_tokens = Histogram(
            name + "completion_tokens", "Tokens per completion", ["role"], buckets=_TOKENS, registry=registry
        )
        self.endpoint_faults = PrometheusCounter(
            name + "endpoint_faults", "Requests that gave no completion", ["fault"], registry=registry
        )
        self.in_flight = Gauge(name + "in_flight", "Requests on their way", registry=registry)
        self.breaker_open = Gauge(
            name + "breaker_open", "1 while an endpoint is not asked", registry=registry
        )

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


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

    @property
    def failed(self) -> int:
        return self.faults.total()

    def report(self) -> dict[str, object]:
        numbers = {name: getattr(self, name) for name in ("calls", "attempts", "cached", "joined")}
        tokens = {"tokens_in": self.tokens_in, "tokens_out": self.tokens_out}
        return {**numbers, **tokens, "faults": {fault.value: n for fault, n in sorted(self.faults.items())}}
