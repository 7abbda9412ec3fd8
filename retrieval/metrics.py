"""The retriever's Prometheus metrics, `scope_retriever_*`, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from retrieval.cache import LookupCounts

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RetrieverMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        name = "scope_retriever_"
        self.requests = Counter(name + "requests", "Answered requests", ["status"], registry=self._registry)
        self.seconds = Histogram(
            name + "request_seconds", "Seconds per request", buckets=SECONDS, registry=self._registry
        )
        self.batch = Histogram(
            name + "batch_queries",
            "Queries per batch",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )
        self.waiting = Gauge(name + "waiting_queries", "Queries in the queue", registry=self._registry)
        self.ready = Gauge(name + "ready", "1 while searches are answered", registry=self._registry)
        self.restarts = Gauge(name + "worker_restarts", "Search workers replaced", registry=self._registry)
        self.reloads = Counter(name + "reloads", "Index reloads", ["outcome"], registry=self._registry)
        self._queries = _LookupCollector()
        self._registry.register(self._queries)

    def render(self, counts: LookupCounts) -> bytes:
        """The exposition text; `counts` of the cache become `scope_retriever_queries_total{answer=...}`."""
        self._queries.counts = counts
        return generate_latest(self._registry)


class _LookupCollector(Collector):
    """Reads the cache's own counts, so that a lookup pays for counting only once."""

    def __init__(self) -> None:
        self.counts = LookupCounts(0, 0, 0)

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(
            "scope_retriever_queries", "Queries by where the answer came from", labels=["answer"]
        )
        for answer, count in self.counts._asdict().items():
            family.add_metric([answer], count)
        return [family]
