"""The run config, and all sections except training, judge and cluster."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from scope_selfplay.base.values import Role
from scope_selfplay.config.base import (
    OPERATION_OF_SEARCH,
    OPERATION_OF_TOOLS,
    WHOLE_SETTINGS,
    ConfigSection,
    SearchConfig,
    ServedConfig,
    ToolConfig,
)
from scope_selfplay.config.cluster import ClusterConfig
from scope_selfplay.config.judge import OPERATION, JudgeConfig
from scope_selfplay.config.training import (
    GREEDILY_JUDGED,
    INHERITED,
    ChallengerConfig,
    SolverConfig,
    preset_of,
)

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Those of a decoder layer, each of which gets an adapter."""


class ModelConfig(ConfigSection):
    path: str = "embedded"
    """Base model M0: a Hugging Face directory, or `embedded` for the tiny policy that ships with the package."""
    dialect: Literal["qwen2.5", "qwen3", "olmo3"] = "qwen2.5"
    """Model family, `qwen2.5`, `qwen3` or `olmo3`: how it writes a search call and its thinking (Table 11)."""
    earlier_thinking: Literal["auto", "keep", "drop"] = "auto"
    """Thinking of earlier turns in the next prompt: `auto` follows the model family (Qwen3 drops it). If it is dropped,
    every turn becomes a training row of its own."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of a low-rank adapter (alpha 32) on all linear layers, which is trained instead of the weights; 0 trains all
    weights (the paper)."""
    engine: Literal["in_process", "vllm_colocated", "vllm_server"] = "in_process"
    """Engine that samples from the policy in training: this process, vLLM on the trainer's GPU, or a vLLM server."""
    export_dtype: Literal["base", "float32"] = "base"
    """Data type of a checkpoint's weights, from which the next iteration starts: that of M0, or float32, which loses
    nothing of small updates to a bfloat16 model and takes twice the room."""
    vllm_memory: float = Field(default=0.6, gt=0, lt=1)
    """Share of the GPU's memory for a colocated vLLM while rollouts are made; during updates it has none."""
    vllm_url: str | None = None
    """URL of the server for `vllm_server`, such as `http://127.0.0.1:8000`; TRL sends it the weights."""
    attention: Literal["sdpa", "flash_attention_2"] = "sdpa"
    """Attention of the model in training: torch's own, or FlashAttention's kernels (a GPU and the package flash-attn),
    under which training rows are packed without padding."""
    deterministic: bool | Literal["auto"] = "auto"
    """Make tokens that are sampled in this process independent of their batch: close draws are computed again for the
    sequence alone. `auto` does so for vocabularies of at most 16,384 tokens and with several `processes`; for larger
    ones it samples in bfloat16 where the CPU has that, about twice as fast, and rounding may decide a token."""
    slots: int = Field(default=96, ge=1)
    """Sequences that the in-process engine decodes concurrently, in all processes together."""
    processes: int = Field(default=1, ge=1)
    """Processes that the in-process engine samples in, on a machine without a GPU: one for each core that it may use.
    The tokens are the same in any number; it needs `deterministic`."""
    max_length: int = Field(default=16_384, ge=64)
    """Tokens of prompt and response together (Table 9, max model length)."""

    def mistakes(self) -> Iterator[str]:
        if self.engine == "vllm_server" and not self.vllm_url:
            yield "engine vllm_server needs vllm_url, for example http://127.0.0.1:8000"
        alike = self.engine == "in_process" and self.deterministic is not False and not self.lora_rank
        if self.processes > 1 and not alike:
            yield (
                f"processes ({self.processes}) sample from whole weights with engine in_process and, so that it is the "
                f"same in each of them, deterministic: true; found engine {self.engine}, deterministic: "
                f"{str(self.deterministic).lower()}, lora_rank {self.lora_rank}; use processes 1"
            )
        if self.engine == "in_process" and self.attention != "sdpa":
            yield (
                f"engine in_process samples from the model in training with attention sdpa, found {self.attention}; "
                "use sdpa, or a vLLM engine"
            )


ARTICLES, HELD_OUT_ARTICLES = 640, 160
"""Articles of the embedded world, and of the second one, which the held-out tasks are about: it has 800 names."""


_YOUNGER: Mapping[str, set[str]] = {
    "challenger": {"reward"},
    "corpus": {"fields", "duplicates", "min_characters", "largest_share", "licences", "hold_out"},
    "judge": {"evaluate", "guard", "noise", "score"},
    "search": {"engine"},
    "tasks": {"largest_share", "longest_answer", "answer_gates", "readers"},
}
"""Younger settings by section: while they have their defaults, the config's hash is what it was without them."""
AnswerGate = Literal["long_answer", "given_away", "no_subject", "misread", "known"]
DocumentField = Literal["id", "title", "text", "url", "date", "language", "licence", "author"]


class CorpusConfig(ConfigSection):
    path: str = "embedded"
    """Source documents: JSONL, DPR's TSV (psgs_w100.tsv, also as .gz), a folder that is read as the prompt pack says,
    `embedded` for a generated fictional world, or `none` for a run on given tasks without search."""
    sample: int | None = Field(default=None, ge=1)
    """Number of documents of `path` that the run takes, the first in the shuffled order of the seed; all when left out.
    A run that needs no more documents than this samples the same ones either way. An external retriever still searches
    its whole index. Of `embedded` so many articles are generated, 16 to 640, beside the 160 that the held-out tasks
    are about."""
    held_out_path: str | None = None
    """Source documents of the held-out tasks; when left out, they are reserved from `path` before iteration 1."""
    hold_out: Literal["page", "document"] = "page"
    """What no other task is written from once a held-out one is: its whole page, with translations and near copies, or
    that document alone. A corpus of few long pages needs `document`."""
    fields: dict[DocumentField, str] = Field(default_factory=dict)
    """What the fields of records are called (CSV, JSON, Parquet), where not `text`, `title`, `id`: such as
    `{text: body, licence: rights}`."""
    strict: bool = False
    """Stop at the first file of a folder that cannot be read, instead of leaving it out with its reason."""
    duplicates: Literal["keep", "exact", "near"] = "exact"
    """Copies that are left out: equal texts and other formats, or also what shares .8 of word trigrams (MinHash)."""
    min_characters: int = Field(default=0, ge=0)
    """Shorter documents are left out."""
    largest_share: float = Field(default=1.0, gt=0, le=1)
    """Largest share of all characters that one file or page may have; its last documents are left out."""
    licences: tuple[str, ...] = ()
    """Licences as the documents name them; others, and documents without one, are left out. All are kept when empty."""
    chunk_tokens: int | None = Field(default=None, ge=32)
    """Chunk size in policy tokens; longer documents are split into chunks, each with the title. When left out, what the
    Challenger's longest prompt leaves of `challenger.max_prompt`, and at most 700."""

    def mistakes(self) -> Iterator[str]:
        if self.sample is not None and self.path == "none":
            yield f"sample {self.sample} needs a path to draw from, found {self.path}"
        if self.path == "embedded" and not 16 <= (self.sample or ARTICLES) <= ARTICLES:
            yield f"the embedded world has 16 to {ARTICLES} articles, found sample {self.sample}"


class PartnersConfig(ConfigSection):
    challenger: ServedConfig = ServedConfig()
    """The frozen Challenger C_t that writes tasks."""
    solver: ServedConfig = ServedConfig()
    """The frozen Solver that difficulty is estimated with (S_{t-1}) and that answers the held-out tasks (S_t)."""
    concurrency: int = Field(default=256, ge=1)
    """Maximum concurrent requests to a partner's server, on average over its replicas; later turns of an episode are
    sent before first ones."""
    keep_form: tuple[Role, ...] = ()
    """Roles (`challenger`, `solver`) whose turns their vLLM keeps in form: a search, a task of one sentence in the
    language of its document, an answer, and no thinking. For small models that are only sampled, never for one that is
    trained."""


class SamplingConfig(ConfigSection):
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of both policies; difficulty is estimated at the temperature of training."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability from whose likeliest tokens each one is sampled, in training and evaluation. Below 1 the
    loss still is that of the whole distribution."""


class ReadersConfig(ConfigSection):
    """The Solver must find a short answer with the passages open, and not know it without."""

    opened: int = Field(default=4, ge=1)
    """Answers with the document open beside the four passages that a search for the question finds first, as many of
    them as fit into `solver.max_prompt` and half of `solver.max_response`."""
    agree: int = Field(default=1, ge=1)
    """How many of them must reach the answer, with an F1 of .8, else the task is misread."""
    closed: int = Field(default=2, ge=1)
    """Answers from memory; a task that one of them reaches is known."""

    def mistakes(self) -> Iterator[str]:
        if self.agree > self.opened:
            yield f"agree ({self.agree}) must be at most opened ({self.opened})"


class TasksConfig(ConfigSection):
    target: int = Field(default=5120, ge=1)
    """Accepted tasks per iteration (appendix G: 256 x 20)."""
    max_candidates: int | None = Field(default=None, ge=1)
    """Maximum number of documents tried; when left out, 4 times the target."""
    rollouts: int = Field(default=4, ge=1)
    """Solver rollouts per candidate, N_filter (appendix G)."""
    low: float = Field(default=0.2, ge=0, le=1)
    """Lower end of the difficulty window (appendix G)."""
    high: float = Field(default=0.8, ge=0, le=1)
    """Upper end of the difficulty window (appendix G)."""
    in_flight: int = Field(default=256, ge=1)
    """Documents that are processed concurrently (appendix G: batches of 200-500)."""
    search_turns: dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]] | None = None
    """Number of search turns -> share of the Challenger's prompts; when left out, as in the prompt pack (4:3:2)."""
    types: tuple[str, ...] | None = None
    """Task types in use; when left out, all that the prompt pack enables."""
    longest_answer: int = Field(default=8, ge=1)
    """Words of a short answer at most."""
    answer_gates: tuple[AnswerGate, ...] = get_args(AnswerGate)
    """What tasks with a short answer are rejected for, beside no_question and no_span."""
    readers: ReadersConfig = ReadersConfig()
    """Readers of tasks with a short answer."""
    largest_share: float = Field(default=1.0, gt=0, le=1)
    """Largest share of the target that may begin alike, with four words that are no names or numbers; further tasks are
    rejected as too_alike."""

    def mistakes(self) -> Iterator[str]:
        if self.low >= self.high:
            yield f"low ({self.low}) must be below high ({self.high})"
        if self.search_turns is not None and not any(self.search_turns.values()):
            yield "search_turns needs a share above 0, for example {1: 4, 2: 3, 3: 2}"


class CompareConfig(ConfigSection):
    tasks: int = Field(default=200, ge=1)
    """Number of held-out tasks, made once before iteration 1."""
    given: str | None = None
    """Compare on the first tasks of this file instead of the Challenger's, in the format of solver.tasks. `embedded`:
    about the embedded corpus, equally many with 1 to 5 links to follow; about any other corpus the Challenger's."""
    promotion: Literal["always", "not_worse", "better"] = "always"
    """When the next iteration starts from S_t: always (the paper), only if S_t is shown to be no worse than the
    checkpoint that it was trained from by `tolerance`, or only if it is shown to be better: the whole 95 % interval of
    the difference lies above 0."""
    evidence: Literal["ratings", "scores"] = "ratings"
    """Evidence for the decision: ratings from the judge's comparisons, or the share of the held-out rubrics met."""
    tolerance: float = Field(default=0.1, gt=0)
    """How much worse S_t might be with promotion not_worse, in units of the evidence: the whole 95 % interval of the
    difference must lie above minus this (non-inferiority)."""
    stop: Literal["never", "worse"] | Annotated[int, Field(ge=1)] = "never"
    """What ends the run with exit 0: `worse`, the first Solver that is worse than the checkpoint it was trained from; a
    number, so many consecutive Solvers of which none is better than the checkpoint that the first of them was trained
    from."""
    both_orders: bool = False
    """Judge every pair of answers in both orders, at twice the calls; otherwise the order alternates over the tasks."""
    swap_with: int | None = Field(default=None, ge=0)
    """Let each later Solver answer the held-out tasks from the searches of this iteration's Solver, and the other way
    round, which tells retrieval and synthesis apart (Table 4: 1, and 3 against it)."""
    benchmarks: tuple[str, ...] = ()
    """Benchmarks that every Solver also answers, as `scope eval --benchmark` takes them: a leaderboard for each grows
    in the run's `benchmarks/`. They decide nothing, and may change within a run."""


class TrackingConfig(ConfigSection):
    """Trackers that training reports to in addition to its metrics.jsonl. None of it changes what a run computes."""

    report_to: tuple[str, ...] = ()
    """Trackers that the trainer also reports to, by transformers' names (`wandb`, `trackio`, `tensorboard`, ...)."""


class RunConfig(ConfigSection):
    """A whole run. `name` decides the folder of the run; the other settings decide what it computes and where."""

    name: str = Field(default="demo", pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")
    """Run id, a DNS label: at most 32 small letters, digits and hyphens, the first and last of them no hyphen."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw of the run."""
    iterations: int = Field(default=3, ge=1)
    """Number of iterations (Table 9)."""
    stop_after: int | None = Field(default=None, ge=0)
    """Stop after this iteration with exit 0; the same command without this setting resumes the run."""
    domain: str = "wikipedia"
    """Prompt pack: a folder (with a slash), or the name of a pack that ships with the package or is in `prompts/`."""
    model: ModelConfig = ModelConfig()
    corpus: CorpusConfig = CorpusConfig()
    search: SearchConfig = SearchConfig()
    tools: tuple[ToolConfig, ...] = ()
    """Tools that the Solver has besides search: `open`, `{open: {...}}` or `{mcp: {...}}` (docs/how/evaluation.md)."""
    partners: PartnersConfig = PartnersConfig()
    sampling: SamplingConfig = SamplingConfig()
    challenger: ChallengerConfig = ChallengerConfig()
    tasks: TasksConfig = TasksConfig()
    solver: SolverConfig = SolverConfig()
    judge: JudgeConfig = JudgeConfig()
    compare: CompareConfig = CompareConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()

    def mistakes(self) -> Iterator[str]:
        # The log-probabilities of a policy that is trained are its own.
        is_frozen = self.challenger.freeze_after == 0 or self.solver.tasks is not None
        for role in () if self.stop_after == 0 else self.partners.keep_form:
            if role is Role.SOLVER or not is_frozen:
                advice = "stop_after: 0" if role is Role.SOLVER else "challenger.freeze_after: 0"
                yield f"partners.keep_form names the {role}, which this run trains; leave it out, or use {advice}"
        overlap = self.challenger.overlap or self.solver.overlap
        if overlap and self.model.engine == "vllm_colocated":
            yield (
                f"overlap ({overlap}) samples beside the update, in which model.engine vllm_colocated sleeps; use "
                "overlap 0, or vllm_server"
            )

    @model_validator(mode="before")
    @classmethod
    def _some_defaults_follow_from_other_settings(cls, given: Any) -> Any:
        solver = _section(given, "solver")
        if preset_of(solver.get("reward")) in GREEDILY_JUDGED:
            given = _over({"temperature": 0.0, "top_p": 0.95}, given, "judge", "calls", "compare")
        # The Challenger trains as the Solver does, but for what it states.
        given = _over({key: solver[key] for key in INHERITED if key in solver}, given, "challenger")
        if _section(given, "search", "engine").get("name", "scope") != "scope":
            # A run that searches somebody else's engine starts no retriever unless it says so.
            given = _over({"serve": False}, given, "cluster", "retriever")
        return given

    @property
    def held_out(self) -> str | None:
        """Where held-out tasks come from: `compare.given`, or C_0 (None)."""
        of_other_corpus = self.compare.given == "embedded" and self.corpus.path != "embedded"
        return None if of_other_corpus else self.compare.given

    @property
    def content(self) -> dict[str, Any]:
        """The settings that decide what the run computes: not its length or name, how often it saves, where servers
        are."""
        exclude: dict[str, Any] = {
            "name": True,
            "iterations": True,
            "stop_after": True,
            "judge": OPERATION | self._unset("judge"),
            "model": {"vllm_memory", "vllm_url", "processes"},
            "challenger": {"save_every": True} | self._unset("challenger"),
            "solver": {"save_every"},
            "tracking": True,
            "tools": OPERATION_OF_TOOLS if self.tools else True,
            "search": OPERATION_OF_SEARCH | self._unset("search"),
            "partners": {"challenger", "solver", "concurrency"} if self.partners.keep_form else True,
            "cluster": True,
            "corpus": {"strict": True} | self._unset("corpus"),
            "tasks": self._unset("tasks"),
            "compare": {"stop", "tolerance", "benchmarks"},
        }
        return self.model_dump(mode="json", exclude=exclude)

    def _unset(self, section: str) -> dict[str, bool]:
        stated = getattr(self, section).model_dump(exclude_defaults=True)
        return {name: True for name in _YOUNGER[section] if name not in stated}

    @property
    def hash(self) -> str:
        """`content` in 16 hex digits."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()[:16]


def _section(given: Any, *path: str) -> Mapping[str, Any]:
    """What was given at a path; empty where that is no mapping."""
    for name in path:
        given = given.get(name) if isinstance(given, Mapping) else None
    return given if isinstance(given, Mapping) else {}


def _over(defaults: Mapping[str, Any], given: Any, *path: str) -> Any:
    """`given` over these defaults at a path; as it is where something on the path is no mapping."""
    if not isinstance(given, Mapping) or not defaults:
        return given
    if not path:
        return {**defaults, **given}
    return {**given, path[0]: _over(defaults, given.get(path[0], {}), *path[1:])}


def changed_settings(before: RunConfig, after: RunConfig) -> list[str]:
    """Dotted names of the settings that make two runs compute different things, in the order of the config."""
    return list(_changed(before.content, after.content, ""))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    # A setting that only one of the two runs has is a difference as well.
    for name in (*before, *(name for name in after if name not in before)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and name not in WHOLE_SETTINGS:
            yield from _changed(old, new, f"{prefix}{name}.")
        elif old != new or (name in before) != (name in after):
            yield prefix + name
