"""The judge: its endpoints, sampling, timeouts and retries."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from scope_selfplay.base.values import Gate, Truncation
from scope_selfplay.config.base import ConfigSection, ServedConfig


class EndpointConfig(ServedConfig):
    weights: str | None = Field(default=None, pattern="^[0-9a-f]{8,64}$")
    """Required hash of the served weights, as printed by `scope serve-model`. It is checked at the start against the
    endpoint's `/info`, or against the end of the model's name if there is no such page (vLLM). Cached judgements are
    keyed by the model's name and this."""
    context: int | None = Field(default=None, ge=1)
    """Context length in tokens; when left out, the value reported by the endpoint. A completion may take half of it,
    and a prompt what a completion leaves: longer texts are cut."""
    tokenizer: str | None = None
    """Folder of the model's tokenizer, or its `tokenizer.json`: no text in a prompt may spell its special tokens. When
    left out, the endpoint is asked for them (vLLM: `--enable-tokenizer-info-endpoint`); those of the known model
    families are kept out in any case."""
    native_thinking: bool = False
    """The model reasons natively: prompts do not ask for a `<think>` block. A written verdict then counts only behind
    the end of its thinking, or where the server gives the thinking apart."""
    template: dict[str, bool | int | str] = Field(default_factory=dict)
    """Arguments of the model's chat template, such as `enable_thinking`."""


class JudgeRole(StrEnum):
    """The question of a call to a judge model, by which `judge.endpoints` and `judge.calls` differ."""

    GATES = "gates"
    RUBRIC = "rubric"
    GRADE = "grade"
    COMPARE = "compare"


class CallConfig(ConfigSection):
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature; retries are never greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability from whose likeliest tokens each one is sampled."""
    max_tokens: int = Field(default=16_384, ge=1)
    """Maximum tokens of one completion, including thinking."""


CALLS: Mapping[JudgeRole, CallConfig] = {
    JudgeRole.GATES: CallConfig(temperature=0.0),
    JudgeRole.RUBRIC: CallConfig(temperature=0.0, max_tokens=8192),
    JudgeRole.GRADE: CallConfig(),
    JudgeRole.COMPARE: CallConfig(),
}
"""Table 9: rubrics at T=0 with 8,192 tokens, grades at T=0.6 with 16,384."""


def _over_defaults(given: object) -> object:
    """The sampling of every question: what is given, over `CALLS`."""
    if not isinstance(given, Mapping):
        return given
    usual: dict[str, Any] = {role.value: call.model_dump() for role, call in CALLS.items()}
    for role, call in given.items():
        usual[role] = {**usual.get(role, {}), **call} if isinstance(call, Mapping) else call
    return usual


class NoiseConfig(ConfigSection):
    """Shares of the judge's calls that are spoilt on purpose, by one of these kinds each."""

    unreadable: float = Field(default=0.0, ge=0, le=1)
    """Share of calls without a verdict that can be read: a fault as any other, after all retries."""
    wrong: float = Field(default=0.0, ge=0, le=1)
    """Share of verdicts that are turned around: gates, grades, comparisons, selections and scores."""
    first: float = Field(default=0.0, ge=0, le=1)
    """Share of comparisons and selections that are decided for what is shown first."""
    longer: float = Field(default=0.0, ge=0, le=1)
    """Share of comparisons, selections, grades and scores that are decided by the answer's length: the longer one wins,
    and a criterion is met with a probability that grows with it."""
    half_length: int = Field(default=40, ge=1)
    """Words of an answer at which that probability is one half; it is 1 - 2^(-words / half_length)."""

    @property
    def total(self) -> float:
        """The share of calls that may be spoilt."""
        return self.unreadable + self.wrong + self.first + self.longer

    @property
    def description(self) -> str:
        """`first 10%, longer 30% (half at 40 words)`."""
        shares = {name: getattr(self, name) for name in ("unreadable", "wrong", "first", "longer")}
        listed = ", ".join(f"{name} {100 * share:g}%" for name, share in shares.items() if share)
        return f"{listed} (half at {self.half_length} words)" if self.longer else listed

    def mistakes(self) -> Iterator[str]:
        if self.total > 1:
            yield f"the shares add up to {self.total:g}; a call is spoilt once, so at most to 1"


_MODEL_CANARIES = 0.01


class CanariesConfig(ConfigSection):
    """Questions with known verdicts, mixed into the judge's calls: they decide nothing but whether to go on."""

    rate: float | None = Field(default=None, ge=0, le=0.5)
    """Canaries per judgement; 0 asks none. When left out, 0.01 where a model judges, and 0 for a judge by rule, which
    cannot change."""
    file: str | None = None
    """JSON lines with cases of your own, or the folder of a run that people have judged (`scope play judge`), whose
    marks join the exam; other cases are made from the run's documents."""


def _stated(given: object) -> object:
    return (
        {key: given[key] for key in given if given[key] is not None} if isinstance(given, Mapping) else given
    )


class JudgeConfig(ConfigSection):
    kind: Literal["lexical", "verifier", "model"] = "lexical"
    """`lexical` checks facts by rule and works only on the embedded world; `verifier` only compares boxed or short
    answers with the reference; `model` calls an endpoint."""
    endpoint: EndpointConfig = EndpointConfig()
    """Endpoint of the judge model; used for every role without an endpoint of its own."""
    endpoints: Annotated[dict[JudgeRole, EndpointConfig], BeforeValidator(_stated)] = Field(
        default_factory=dict
    )
    """Endpoints of their own for `gates`, `rubric`, `grade` or `compare` (comparisons, selections and scores), with the
    settings of `judge.endpoint`: `{compare: {base_url: ...}}` (SCOPE, figure 4)."""
    evaluate: tuple[EndpointConfig, ...] = ()
    """Endpoints of judges that decide and train nobody: they grade and compare held-out answers. Promotion goes by the
    first, and `scope eval` asks each. When left out, the judge that trains decides, too."""
    verdict: Literal["written", "token"] = "written"
    """Form of gates, grades and preferences: reasoning with a verdict (the paper), or one constrained token."""
    calls: Annotated[dict[JudgeRole, CallConfig], BeforeValidator(_over_defaults)] = Field(
        default_factory=lambda: dict(CALLS)
    )
    """Sampling by question: `temperature` (retries are never greedy), `top_p` and `max_tokens` of a completion with its
    thinking, each over the default (Table 9)."""
    score: Literal["hard", "soft"] = "hard"
    """What a token's grade counts: whether a criterion is met, or how likely that is after the exam's calibration."""
    guard: bool | None = None
    """Ask with one token per answer whether it speaks to whoever grades it or about its own worth; such an answer meets
    no criterion. When left out, so where grades are one token, by `verdict` or by the pack."""
    exam: Literal["stop", "report", "none"] = "stop"
    """What an exam of the judge does before a run: a judge that cannot tell right from wrong `stop`s it, or the exam
    only `report`s; `none` holds none, and verdicts of one token are not calibrated (docs/how/judge.md)."""
    max_chars: int = Field(default=48_000, ge=1000)
    """Maximum characters of all candidates in one prompt; longer candidates are cut, all to the same length. Where the
    prompt is still too long for the judge's context, the limit is halved until it fits."""
    truncation: Truncation = Truncation.END
    """What a text that is too long for a prompt loses: its end, or its middle."""
    concurrency: int = Field(default=256, ge=1)
    """Maximum concurrent requests to one endpoint."""
    patience: float = Field(default=600.0, gt=0)
    """Seconds for which a completion may take, and for which calls wait for an endpoint that is down or busy before
    they fail."""
    retries: int = Field(default=2, ge=0, le=2)
    """Maximum number of retries of an unreadable or failed judgement, each with another seed."""
    cache: str | None = "judgements.sqlite"
    """File of cached judgements, relative to the run's folder; null disables the cache."""
    gates: tuple[Gate, ...] | None = None
    """Quality gates of a task; when left out, those of the prompt pack. An empty list is the paper's ablation."""
    failure_budget: float = Field(default=0.02, ge=0, le=1)
    """Share of failed verdicts above which a stage stops with exit 75, once it has made at least 50 calls."""
    noise: NoiseConfig | None = None
    """Errors that a judge by rule makes on purpose, for experiments on judges that err: shares of its calls that are
    `unreadable`, `wrong`, in favour of the `first` shown or of the `longer` answer (docs/how/judge.md)."""
    canaries: CanariesConfig = CanariesConfig()
    """Questions with known verdicts, by which a judge that fails is noticed."""

    @field_validator("noise")
    @classmethod
    def _without_shares_there_is_none(cls, noise: NoiseConfig | None) -> NoiseConfig | None:
        return noise if noise and noise.total else None

    def endpoint_of(self, role: JudgeRole) -> EndpointConfig:
        """The endpoint of a role."""
        return self.endpoints.get(role, self.endpoint)

    @property
    def deciding(self) -> tuple["JudgeConfig", ...]:
        """A judge for each endpoint of `evaluate`, which fills every role; without any, the judge that trains."""
        if self.kind != "model" or not self.evaluate:
            return (self,)
        alone: dict[str, Any] = {"endpoints": {}, "evaluate": ()}
        return tuple(self.model_copy(update={"endpoint": endpoint, **alone}) for endpoint in self.evaluate)

    @property
    def canary_rate(self) -> float:
        """Canaries per judgement: as set, else what is usual for this kind of judge."""
        if self.canaries.rate is not None:
            return self.canaries.rate
        return _MODEL_CANARIES if self.kind == "model" else 0.0

    def lacking(self) -> Iterator[str]:
        placed = self.endpoint.base_url or all(self.endpoint_of(role).base_url for role in JudgeRole)
        if self.kind == "model" and not placed:
            yield "a model judge needs judge.endpoint.base_url, for example http://127.0.0.1:8000/v1"

    def mistakes(self) -> Iterator[str]:
        if self.evaluate and self.kind != "model":
            yield f"evaluate names endpoints, found kind {self.kind}; use kind: model, or leave it out"
        if not all(endpoint.base_url for endpoint in self.evaluate):
            yield ("every endpoint of evaluate needs a base_url, for example http://127.0.0.1:8001/v1")
        if self.kind == "verifier" and self.canaries.rate:
            yield (
                f"canaries.rate is {self.canaries.rate:g}, but kind verifier compares by rule and reads no text; "
                "leave it out"
            )
        if self.noise and self.kind == "model":
            yield (
                f"noise ({self.noise.description}) is for judges by rule, found kind model, which errs by itself; "
                "leave noise out, or use kind lexical"
            )
        if self.noise and self.noise.unreadable > self.failure_budget:
            yield (
                f"noise.unreadable ({self.noise.unreadable:g}) is over failure_budget ({self.failure_budget:g}), so "
                "every stage would stop; raise judge.failure_budget above it"
            )


# The tokenizer tells what hostile texts may not spell: no judgement changes.
_WHERE = {"base_url", "api_key_env", "tokenizer"}
OPERATION: dict[str, Any] = {
    "canaries": True,
    "exam": True,
    "concurrency": True,
    "patience": True,
    "retries": True,
    "cache": True,
    "endpoint": _WHERE,
    "endpoints": dict.fromkeys(JudgeRole, _WHERE),
    "evaluate": {"__all__": _WHERE},
}
"""Operational settings of the judge, which do not affect judgements: they may change within a run."""
