"""One run as data: every setting with its meaning, unit, paper symbol and default.

Defaults are the paper's (SCOPE, Table 9) unless a field says otherwise. A file holds only what differs;
`load_config` is the only reader. A run writes its resolved config beside its results and refuses to go on
under another one (`RunConfig.hash`).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scope_selfplay.errors import ConfigError
from scope_selfplay.schemas import Gate


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(Settings):
    path: str = "embedded"
    """Base model M0: a Hugging Face directory, or `embedded` for the tiny policy that ships with the package."""
    dialect: Literal["qwen2.5", "qwen3", "olmo3"] = "qwen2.5"
    """Model family: how it writes a search call and its thinking (Table 11)."""
    engine: Literal["in_process"] = "in_process"
    """What generates rollouts."""
    deterministic: bool = True
    """The same ids whatever shares the batch: close calls are decided by the sequence alone."""
    slots: int = Field(default=96, ge=1)
    """Sequences that the in-process engine decodes side by side."""
    max_length: int = Field(default=16_384, ge=64)
    """Tokens of prompt and response together (Table 9, max model length)."""


class CorpusConfig(Settings):
    path: str = "embedded"
    """Source documents: JSONL, a folder of text files, or `embedded` for a generated fictional world."""
    held_out_path: str | None = None
    """Documents of the held-out tasks; without it they are reserved from `path` before iteration 1."""
    chunk_tokens: int = Field(default=700, ge=32)
    """A longer document is cut into chunks of this many policy tokens, each with its title."""
    embedded_articles: int = Field(default=1200, ge=16)
    """Size of the generated world."""
    embedded_held_out: int = Field(default=400, ge=16)
    """Size of the second world that the held-out tasks are about."""


class SearchConfig(Settings):
    topk: int = Field(default=3, ge=1)
    """Documents per query (Table 9)."""
    max_tokens: int = Field(default=500, ge=8)
    """Tool response, in policy tokens (Table 9); the lowest-ranked document is cut first."""


class SamplingConfig(Settings):
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of both policies; difficulty is estimated at the temperature of training."""


class TrainConfig(Settings):
    steps: int = Field(default=20, ge=1)
    """GRPO steps per iteration (Table 9)."""
    batch: int = Field(ge=1)
    """Prompts per step (Table 9: Challenger 64, Solver 256)."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts per prompt, G (Table 9)."""
    micro_batch: int = Field(default=8, ge=1)
    """Rollouts per forward pass of the trainer; gradients are accumulated up to batch * group_size."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up (Table 9)."""
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    """Share of the steps with a rising learning rate (Table 9)."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Gradient clip (Table 9)."""
    kl_beta: float = Field(default=1e-3, ge=0)
    """Weight of the KL to M0, beta (equation 3, Table 9)."""
    loss: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "grpo"
    """How token losses are averaged (TRL's `loss_type`)."""
    save_every: int = Field(default=5, ge=1)
    """Steps between checkpoints from which a killed stage goes on."""
    max_prompt: int = Field(ge=8)
    """Prompt tokens (Table 9: Challenger 1,024, Solver 2,048)."""
    max_response: int = Field(default=8192, ge=8)
    """Tokens of all turns after the prompt, tool results included (Table 9)."""

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        rollouts = self.batch * self.group_size
        if rollouts % self.micro_batch:
            raise ValueError(
                f"micro_batch ({self.micro_batch}) must divide batch * group_size ({rollouts}); "
                f"{math.gcd(rollouts, self.micro_batch)} would do"
            )
        return self


class ChallengerConfig(TrainConfig):
    batch: int = Field(default=64, ge=1)
    """Documents per step (Table 9)."""
    max_prompt: int = Field(default=1024, ge=8)
    """Prompt tokens (Table 9)."""
    frozen: bool = False
    """Keep C_0 in every iteration: the paper's ablation of co-evolution."""
    rollouts: int = Field(default=8, ge=1)
    """Solver rollouts per task for its difficulty, N (Table 9)."""
    format_weight: float = Field(default=0.5, ge=0)
    """lambda_fmt (equation 4)."""
    difficulty_weight: float = Field(default=1.0, ge=0)
    """lambda_diff (equation 4)."""
    target: float = Field(default=0.5, gt=0, lt=1)
    """Mean score at which the difficulty reward peaks, tau (equation 5)."""
    invalid_searches: int = Field(default=1, ge=0)
    """Turns without a valid action that are answered with the format; one more ends the rollout."""


class SolverConfig(TrainConfig):
    batch: int = Field(default=256, ge=1)
    """Tasks per step (Table 9)."""
    max_prompt: int = Field(default=2048, ge=8)
    """Prompt tokens (Table 9)."""
    max_search_turns: int = Field(default=5, ge=1)
    """Searches of one rollout, in training as in evaluation."""
    tasks: str | None = None
    """Train on the tasks of this file instead of the Challenger's: the GRPO-on-given-tasks baseline."""
    rubric_weight: float = Field(default=1.0, ge=0)
    """lambda_acc (equation 6)."""
    format_weight: float = Field(default=0.5, ge=0)
    """lambda_fmt (equation 6)."""
    search_weight: float = Field(default=0.1, ge=0)
    """lambda_search (equation 6)."""
    search_saturation: int = Field(default=3, ge=1)
    """Searches at which the search reward reaches 1 (Table 9)."""
    length_factor: bool = True
    """Scale the rubric score by the answer's length (equation 7); off is the paper's ablation."""
    length_soft: int = Field(default=1024, ge=1)
    """Answer tokens up to which nothing is taken off (Table 9)."""
    length_hard: int = Field(default=2048, ge=2)
    """Answer tokens from which only the floor is left (Table 9)."""
    length_floor: float = Field(default=0.05, ge=0, le=1)
    """Share of the rubric score that an answer of length_hard tokens or more keeps (Table 9)."""

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        if self.length_hard <= self.length_soft:
            raise ValueError(f"length_hard ({self.length_hard}) must exceed length_soft ({self.length_soft})")
        return self


class TasksConfig(Settings):
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
    def _window_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self

    @model_validator(mode="after")
    def _some_share(self) -> Self:
        if self.search_turns is not None and not any(self.search_turns.values()):
            raise ValueError("search_turns needs a share above 0, for example {1: 4, 2: 3, 3: 2}")
        return self


class EndpointConfig(Settings):
    base_url: str = ""
    """An OpenAI-compatible endpoint, such as `http://127.0.0.1:8000/v1`."""
    model: str | None = None
    """Name of the model there; the only one that the endpoint serves when left out."""
    revision: str = ""
    """Names the weights behind the model's name (their sha256, say); a cached judgement belongs to both."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    context: int | None = Field(default=None, ge=1)
    """Tokens that the model can hold; what the endpoint says when left out. No completion is asked to be longer."""
    native_thinking: bool = False
    """The model thinks by itself: prompts then ask for no `<think>` block."""
    template: dict[str, bool | int | str] = Field(default_factory=dict)
    """Settings of the model's chat template, such as `enable_thinking`."""


class RoleEndpointsConfig(Settings):
    gates: EndpointConfig | None = None
    """Judges the gates instead of `judge.endpoint` (SCOPE, figure 4)."""
    rubric: EndpointConfig | None = None
    """Writes the rubrics instead of `judge.endpoint`."""
    grade: EndpointConfig | None = None
    """Grades answers instead of `judge.endpoint`."""
    compare: EndpointConfig | None = None
    """Compares, selects and scores instead of `judge.endpoint`: a held-out judge, for example."""


class CallConfig(Settings):
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature; a second try is never greedy."""
    max_tokens: int = Field(default=16_384, ge=1)
    """Tokens of one completion, thinking included."""


class PatienceConfig(Settings):
    call: float = Field(default=600.0, gt=0)
    """Seconds for one completion, from when it is sent."""
    retries: int = Field(default=2, ge=0, le=2)
    """Times that an unreadable or failed judgement is asked for again, each with another seed."""
    silence: float = Field(default=30.0, gt=0)
    """Seconds without any reply after which a one-token canary asks whether the engine lives."""
    canary: float = Field(default=30.0, gt=0)
    """Seconds for the canary's answer; without one the breaker opens."""
    failures: int = Field(default=8, ge=1)
    """Failures in a row that open the breaker."""
    outage: float = Field(default=600.0, gt=0)
    """Seconds that calls wait for an endpoint that is down or busy before they fail."""
    stage: float | None = Field(default=None, gt=0)
    """Seconds of one stage after which the judge answers no more; the stage stops and resumes later."""


class JudgeConfig(Settings):
    kind: Literal["lexical", "model"] = "lexical"
    """`lexical` checks facts by rule and understands the embedded world only; `model` asks an endpoint."""
    endpoint: EndpointConfig = EndpointConfig()
    """Where the judge model is served; it plays every role that has no endpoint of its own."""
    endpoints: RoleEndpointsConfig = RoleEndpointsConfig()
    """Other endpoints for single roles."""
    verdict: Literal["written", "token"] = "written"
    """Gates, grades and preferences as reasoning with a verdict (the paper), or as one constrained token."""
    gate_call: CallConfig = CallConfig(temperature=0.0)
    """How gates are sampled."""
    rubric_call: CallConfig = CallConfig(temperature=0.0, max_tokens=8192)
    """How rubrics are sampled (Table 9: T=0, 8,192 tokens)."""
    grade_call: CallConfig = CallConfig()
    """How grades are sampled (Table 9: T=0.6, 16,384 tokens)."""
    compare_call: CallConfig = CallConfig()
    """How comparisons, selections and scores are sampled."""
    max_chars: int = Field(default=48_000, ge=1000)
    """Characters of candidates in one prompt, shared equally; longer ones are cut, all at the same length."""
    concurrency: int = Field(default=256, ge=1)
    """Requests at once to one endpoint."""
    patience: PatienceConfig = PatienceConfig()
    """How long the judge waits and how often it asks again."""
    allowed_hosts: tuple[str, ...] | None = None
    """Hosts that may be called; those of the endpoints when left out."""
    cache: str | None = "judgements.sqlite"
    """File of paid judgements, relative to the run's folder; null keeps none."""
    prompts: str = "wikipedia"
    """Prompt pack of a judge's texts that the run's own pack does not have."""
    gates: tuple[Gate, ...] | None = None
    """Quality gates of a task; the prompt pack's when left out, an empty list is the paper's ablation."""
    failure_budget: float = Field(default=0.02, ge=0, le=1)
    """Share of failed verdicts above which a stage stops with exit 75."""

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        roles = (self.endpoints.gates, self.endpoints.rubric, self.endpoints.grade, self.endpoints.compare)
        placed = self.endpoint.base_url or all(each is not None and each.base_url for each in roles)
        if self.kind == "model" and not placed:
            raise ValueError(
                "a model judge needs judge.endpoint.base_url, for example http://127.0.0.1:8000/v1"
            )
        return self


_WHERE = {"base_url", "api_key_env"}
_OPERATION: dict[str, Any] = {
    "concurrency": True,
    "patience": True,
    "allowed_hosts": True,
    "cache": True,
    "endpoint": _WHERE,
    "endpoints": dict.fromkeys(RoleEndpointsConfig.model_fields, _WHERE),
}
"""Settings of the judge that say where and how fast, not what: a run may go on with others."""


class CompareConfig(Settings):
    tasks: int = Field(default=200, ge=1)
    """Held-out tasks, made once before iteration 1."""
    promotion: Literal["always", "not_worse"] = "always"
    """Whether the next iteration starts from S_t in any case (the paper) or only where it is not worse."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples of the intervals."""


class RunConfig(Settings):
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
    """Prompt pack: a folder, or the name of one that ships with the package."""
    model: ModelConfig = ModelConfig()
    corpus: CorpusConfig = CorpusConfig()
    search: SearchConfig = SearchConfig()
    sampling: SamplingConfig = SamplingConfig()
    challenger: ChallengerConfig = ChallengerConfig()
    tasks: TasksConfig = TasksConfig()
    solver: SolverConfig = SolverConfig()
    judge: JudgeConfig = JudgeConfig()
    compare: CompareConfig = CompareConfig()

    @property
    def hash(self) -> str:
        """What the run computes, in 16 hex digits; how far it goes, what it is called and where judges run do not
        count."""
        exclude: dict[str, Any] = {"name": True, "iterations": True, "stop_after": True, "judge": _OPERATION}
        content = self.model_dump(mode="json", exclude=exclude)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def load_config(path: Path | None, overrides: Sequence[str] = (), *, base: Path | None = None) -> RunConfig:
    """Read a run config: defaults, then `base`, then the file at `path`, then `dotted.key=value` overrides.

    Raises ConfigError, which names the key, what was found, and what was expected.
    """
    data: dict[str, Any] = {}
    for file in (base, path):
        if file is not None:
            data = _merged(data, _read_yaml(file))
    for override in overrides:
        data = _merged(data, _parse_override(override))
    return parse_config(data, where=str(path) if path else "config")


def parse_config(data: dict[str, Any], *, where: str = "config") -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_problem(error)}") from None


def field_names(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every setting as its dotted key."""
    names: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += field_names(field.annotation, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a YAML file with run settings") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: found a {type(data).__name__}, expected a mapping of settings")
    return data


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text}: expected key=value, for example solver.steps=8")
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {text}: {value!r} is not a YAML value; quote it if it is text") from None
    # YAML 1.1 reads 1e-3 as text because it has no dot; what stands in quotes is meant as text.
    if parsed == value.strip():
        with suppress(ValueError):
            parsed = float(parsed)
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    return dict(parsed)


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        # Ratios are values as a whole: merging them would keep entries that the change means to drop.
        if isinstance(old, dict) and isinstance(value, dict) and key != "search_turns":
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        return f"unknown setting {key}{_did_you_mean(key, field_names())}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        # A rule between settings of one group: it names them itself, the whole group would bury it.
        return f"{key}: {message}"
    return f"{key or 'run'}: found {first['input']!r}, {message[0].lower() + message[1:]}"


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    names = list(known)
    by_last = {name.rsplit(".", 1)[-1]: name for name in names}
    close = get_close_matches(key, names, n=1, cutoff=0.6)
    if not close:
        close = [
            by_last[last] for last in get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.6)
        ]
    return f"; did you mean {close[0]}?" if close else "; `scope config` lists all settings"
