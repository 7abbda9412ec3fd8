"""A whole run, and its sections besides training, judge and cluster."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from scope_selfplay.config.base import WHOLE_SETTINGS, ConfigSection
from scope_selfplay.config.cluster import ClusterConfig
from scope_selfplay.config.judge import OPERATION, JudgeConfig
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.schemas import CorpusReader


class LoraConfig(ConfigSection):
    rank: int = Field(default=0, ge=0)
    """Rank of a low-rank adapter that is trained instead of the weights; 0 trains all weights (the paper)."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapter: its product is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Linear layers that get an adapter."""


class ModelConfig(ConfigSection):
    path: str = "embedded"
    """Base model M0: a Hugging Face directory, or `embedded` for the tiny policy that ships with the package."""
    dialect: Literal["qwen2.5", "qwen3", "olmo3"] = "qwen2.5"
    """Model family: how it writes a search call and its thinking (Table 11)."""
    earlier_thinking: Literal["auto", "keep", "drop"] = "auto"
    """Thinking of earlier turns in the next prompt: `auto` does as the family does (Qwen3 drops it). Where it is
    dropped, every turn is a training row of its own."""
    lora: LoraConfig = LoraConfig()
    """Train a low-rank adapter instead of all weights."""
    engine: Literal["in_process", "vllm_colocated", "vllm_server"] = "in_process"
    """What samples from the policy in training: this process, vLLM on the trainer's GPU, or vLLM elsewhere."""
    vllm_memory: float = Field(default=0.3, gt=0, lt=1)
    """Share of the GPU's memory that a colocated vLLM may take, the trainer's tensors besides."""
    vllm_url: str | None = None
    """Where the vLLM of `vllm_server` is, such as `http://127.0.0.1:8000`; TRL brings the weights into it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where frozen policies sample in this process; `auto` takes a GPU where there is one. The policy in training
    samples where it is trained."""
    deterministic: bool = True
    """The same ids whatever shares the batch: close calls are decided by the sequence alone."""
    slots: int = Field(default=96, ge=1)
    """Sequences that the in-process engine decodes side by side."""
    max_length: int = Field(default=16_384, ge=64)
    """Tokens of prompt and response together (Table 9, max model length)."""

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        if self.engine == "vllm_server" and not self.vllm_url:
            raise ValueError("engine vllm_server needs vllm_url, for example http://127.0.0.1:8000")
        return self


class CorpusConfig(ConfigSection):
    path: str = "embedded"
    """Source documents: JSONL, a folder of text files, `embedded` for a generated fictional world, or `none` for a run
    on given tasks without search."""
    reader: CorpusReader | None = None
    """How a folder is read: `text_files` or `markdown_sections`; the prompt pack's when left out. A file is JSONL."""
    sample: int | None = Field(default=None, ge=1)
    """Begin the run with so many documents of `path`, those that the seed deals first; all when left out. A run that
    needs no more than these deals the same ones either way. With a retriever elsewhere, everything there is found."""
    held_out_path: str | None = None
    """Documents of the held-out tasks; without it they are reserved from `path` before iteration 1."""
    chunk_tokens: int = Field(default=700, ge=32)
    """A longer document is cut into chunks of this many policy tokens, each with its title."""
    embedded_articles: int = Field(default=1200, ge=16)
    """Size of the generated world."""
    embedded_held_out: int = Field(default=400, ge=16)
    """Size of the second world that the held-out tasks are about."""

    @model_validator(mode="after")
    def _has_documents_to_sample(self) -> Self:
        if self.sample is not None and self.path in ("embedded", "none"):
            raise ValueError(f"sample {self.sample} needs a path to draw from, found {self.path}")
        return self


class SearchConfig(ConfigSection):
    topk: int = Field(default=3, ge=1)
    """Documents per query (Table 9)."""
    max_tokens: int = Field(default=500, ge=8)
    """Tool response, in policy tokens (Table 9); the lowest-ranked document is cut first."""
    url: str | None = None
    """A retriever, such as `http://127.0.0.1:8000`; BM25 over the corpus, in this process, when left out."""
    api_key_env: str | None = None
    """Environment variable that holds the retriever's bearer token."""
    outage: float = Field(default=600.0, gt=0)
    """Seconds that a search waits for a retriever that is down; then the stage stops and resumes later."""


class PartnerConfig(ConfigSection):
    base_url: str | None = None
    """Where this partner is served, such as `http://127.0.0.1:8000/v1`; it runs in this process when left out."""
    model: str | None = None
    """Name of the model there; the only one that the endpoint serves when left out."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""


class PartnersConfig(ConfigSection):
    challenger: PartnerConfig = PartnerConfig()
    """The Challenger C_t that writes tasks while it is not trained."""
    solver: PartnerConfig = PartnerConfig()
    """The Solver that difficulty is tried on (S_{t-1}) and that answers the held-out tasks (S_t)."""
    concurrency: int = Field(default=256, ge=1)
    """Requests at once to one partner."""
    call: float = Field(default=900.0, gt=0)
    """Seconds for one turn, from when it is sent."""
    outage: float = Field(default=600.0, gt=0)
    """Seconds that a turn waits for a partner that is down; then the stage stops and resumes later."""


class SamplingConfig(ConfigSection):
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of both policies; difficulty is estimated at the temperature of training."""


class TasksConfig(ConfigSection):
    target: int = Field(default=5120, ge=1)
    """Accepted tasks per iteration (appendix G: 256 x 20)."""
    max_candidates: int | None = Field(default=None, ge=1)
    """Documents tried at most; 4 times the target when left out."""
    rollouts: int = Field(default=4, ge=1)
    """Solver rollouts per candidate, N_filter (appendix G)."""
    low: float = Field(default=0.2, ge=0, le=1)
    """Lower end of the difficulty window (appendix G)."""
    high: float = Field(default=0.8, ge=0, le=1)
    """Upper end of the difficulty window (appendix G)."""
    max_missing: float = Field(default=0.5, ge=0, le=1)
    """Share of ungraded rollouts above which a candidate stays unresolved."""
    in_flight: int = Field(default=256, ge=1)
    """Documents that are worked on side by side (appendix G: batches of 200-500)."""
    search_turns: dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]] | None = None
    """Number of search turns -> share of the Challenger's prompts; the prompt pack's when left out (4:3:2)."""
    types: tuple[str, ...] | None = None
    """Task types in use; all that the prompt pack enables when left out."""

    @model_validator(mode="after")
    def _window_and_shares_select_something(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.search_turns is not None and not any(self.search_turns.values()):
            raise ValueError("search_turns needs a share above 0, for example {1: 4, 2: 3, 3: 2}")
        return self


class CompareConfig(ConfigSection):
    tasks: int = Field(default=200, ge=1)
    """Held-out tasks, made once before iteration 1."""
    given: str | None = None
    """Compare on the first tasks of this file instead of the Challenger's; files as for solver.tasks."""
    promotion: Literal["always", "not_worse", "better"] = "always"
    """When the next iteration starts from S_t: in any case (the paper), unless it is worse, or only where it is better
    than the checkpoint that it was trained from."""
    evidence: Literal["ratings", "scores"] = "ratings"
    """What decides: ratings from the judge's comparisons, or the share of the held-out rubrics met."""
    margin: float = Field(default=0.0, ge=0)
    """Better and worse mean that the whole 95 % interval of the difference lies beyond this, in units of the
    evidence."""
    stop: Literal["never", "worse"] = "never"
    """`worse` ends the run, with exit 0, at the first Solver that is worse than the checkpoint it was trained from."""
    patience: int | None = Field(default=None, ge=1)
    """End the run, with exit 0, when none of this many Solvers in a row is better than what the first of them was
    trained from."""
    both_orders: bool = False
    """Show every pair of answers in both orders, at twice the calls; else each pair of checkpoints takes turns."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples of the intervals."""


class TrackingConfig(ConfigSection):
    """Where training reports beside its own metrics.jsonl. None of it changes what a run computes."""

    report_to: tuple[str, ...] = ()
    """Trackers that the trainer also reports to, by transformers' names (`wandb`, `trackio`, `tensorboard`, ...)."""
    log_completions: bool = False
    """Keep the texts of every step with rewards and advantages, as parquet in the stage's `completions/`."""


class RunConfig(ConfigSection):
    """A whole run. `name` says where it lies; everything else says what it computes."""

    name: str = Field(default="demo", pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")
    """Run id: a DNS label of at most 32 characters."""
    seed: int = Field(default=0, ge=0)
    """Every random draw of the run is keyed by it."""
    iterations: int = Field(default=3, ge=1)
    """Iterations in all (Table 9)."""
    stop_after: int | None = Field(default=None, ge=0)
    """Stop after this iteration, with exit 0; the same command without it goes on."""
    domain: str = "wikipedia"
    """Prompt pack: a folder (with a slash), or the bare name of one that ships, else of one below `prompts/`."""
    model: ModelConfig = ModelConfig()
    corpus: CorpusConfig = CorpusConfig()
    search: SearchConfig = SearchConfig()
    partners: PartnersConfig = PartnersConfig()
    sampling: SamplingConfig = SamplingConfig()
    challenger: ChallengerConfig = ChallengerConfig()
    tasks: TasksConfig = TasksConfig()
    solver: SolverConfig = SolverConfig()
    judge: JudgeConfig = JudgeConfig()
    compare: CompareConfig = CompareConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def content(self) -> dict[str, Any]:
        """What decides what the run computes; not how far it goes, what it is called, and where others run."""
        exclude: dict[str, Any] = {
            "name": True,
            "iterations": True,
            "stop_after": True,
            "judge": OPERATION,
            "model": {"vllm_memory", "vllm_url", "device"},
            "tracking": True,
            "search": {"url", "api_key_env", "outage"},
            "partners": True,
            "cluster": True,
            "compare": {"stop", "patience"},
        }
        return self.model_dump(mode="json", exclude=exclude)

    @property
    def hash(self) -> str:
        """`content` in 16 hex digits."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()[:16]


def changed_settings(before: RunConfig, after: RunConfig) -> list[str]:
    """The dotted names of what makes two runs compute different things, in the order of the config; [] for none."""
    return list(_changed(before.content, after.content, ""))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    # A name that only one of the two runs has is a difference as well.
    for name in (*before, *(name for name in after if name not in before)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and name not in WHOLE_SETTINGS:
            yield from _changed(old, new, f"{prefix}{name}.")
        elif old != new or (name in before) != (name in after):
            yield prefix + name
