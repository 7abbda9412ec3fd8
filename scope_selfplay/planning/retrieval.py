"""What the retriever takes: the hours of encoding its corpus once, and how long the searches of a training step are."""

from typing import NamedTuple

from retrieval.profiles import ProfileName, estimate
from retrieval.serve_memory import GIB, held_bytes
from scope_selfplay.config import RunConfig
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.memory import gib_of

_DIMENSIONS = 768
_PASSAGE_BYTES = 660
"""A passage of 100 words with its title, as JSON."""
_ENCODER_BYTES = 440_000_000
"""E5-base-v2 in float32."""


class RetrievalPlan(NamedTuple):
    """`encode_hours` are those of the Job that builds the index: with its GPUs, or with its CPUs."""

    passages: int
    core_hours: float
    """Of encoding on CPUs."""
    encode_hours: float
    encoded_by: str
    """A GPU, so many CPUs, or nobody where vectors are published."""
    searches: int
    """Of one step of the Solver's training."""
    search_cpus: float
    search_seconds: float
    """All of them, one after the other on each CPU."""
    memory_gib: float
    """Of the server: its search processes, and what a busy one keeps of the index."""
    requested_gib: float

    @property
    def is_short(self) -> bool:
        """Whether the server would have too little memory."""
        return self.memory_gib > self.requested_gib


def retrieval_plan(config: RunConfig, assumptions: Assumptions) -> RetrievalPlan | None:
    """None for a run that searches nothing, words only, or an index that it does not build."""
    cluster, prepare = config.cluster, config.cluster.prepare
    builds = cluster.retriever.serve and prepare.encoder is not None and not cluster.tiny
    if config.corpus.path == "none" or config.search.url is not None or not builds:
        return None
    core_hours = assumptions.passages / assumptions.encode_rate / 3600
    cpus, search_cpus = prepare.index_job.cores, cluster.retriever.cores
    if prepare.vectors is not None:
        hours, encoded_by = 0.0, "published vectors"
    elif prepare.index_job.gpus:
        # One process and one GPU: more would wait for the reading of texts.
        hours, encoded_by = assumptions.passages / assumptions.gpu_encode_rate / 3600, "1 GPU"
    else:
        hours, encoded_by = core_hours / cpus, f"{cpus:g} CPUs"
    searches = round(config.solver.batch * config.solver.group_size * assumptions.searches)
    seconds = searches / (assumptions.query_rate * search_cpus)
    return RetrievalPlan(
        assumptions.passages,
        core_hours,
        hours,
        encoded_by,
        searches,
        search_cpus,
        seconds,
        _serving_gib(config, assumptions.passages),
        gib_of(cluster.retriever.memory),
    )


def _serving_gib(config: RunConfig, passages: int) -> float:
    """For the profile of `prepare.index`, with an encoder of E5-base's size."""
    workers = config.cluster.retriever.workers
    words = [word for option in config.cluster.prepare.index for word in option.split("=")]
    named = words[words.index("--profile") + 1] if "--profile" in words else ProfileName.BM25
    size = estimate(
        ProfileName(named),
        rows=passages,
        dimensions=_DIMENSIONS,
        corpus_bytes=passages * _PASSAGE_BYTES,
        passages_per_second=1.0,
    )
    return (size.serve_memory + held_bytes(_ENCODER_BYTES, workers)) / GIB
