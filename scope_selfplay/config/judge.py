"""The judge: its endpoints, sampling, timeouts and retries."""

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from scope_selfplay.config.base import ConfigSection
from scope_selfplay.gates import Gate
from scope_selfplay.schemas import Truncation


class EndpointConfig(ConfigSection):
    base_url: str = ""
    """An OpenAI-compatible endpoint, such as `http://127.0.0.1:8000/v1`."""
    replicas: tuple[str, ...] = ()
    """Further endpoints of the same model. Prompts about one task go to the same one, whose cache has their beginning;
    when one is gone, the others take its prompts."""
    model: str | None = None
    """Name of the model at the endpoint; may be left out if the endpoint serves only one model."""
    revision: str = ""
    """Identifies the weights, for example by their sha256; cached judgements are keyed by model name and revision."""
    weights: str | None = Field(default=None, pattern="^[0-9a-f]{8,64}$")
    """Required hash of the served weights, as printed by `scope serve-model`. It is checked at the start against the
    endpoint's `/info`, or against the end of the model's name if there is no such page (vLLM)."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
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

    @property
    def each_url(self) -> tuple[str, ...]:
        """Where the model is served: `base_url` and those of the replicas."""
        return (self.base_url, *self.replicas)


class JudgeRole(StrEnum):
    """The role of a call to a judge model; `judge.endpoints` has one field per role."""

    GATES = "gates"
    RUBRIC = "rubric"
    GRADE = "grade"
    COMPARE = "compare"


class RoleEndpointsConfig(ConfigSection):
    gates: EndpointConfig | None = None
    """Endpoint for gates, instead of `judge.endpoint` (SCOPE, figure 4)."""
    rubric: EndpointConfig | None = None
    """Endpoint for rubrics, instead of `judge.endpoint`."""
    grade: EndpointConfig | None = None
    """Endpoint for grades, instead of `judge.endpoint`."""
    compare: EndpointConfig | None = None
    """Endpoint for comparisons, selections and scores, instead of `judge.endpoint`; for example a held-out judge."""


class CallConfig(ConfigSection):
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature; retries are never greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability from whose likeliest tokens each one is sampled."""
    max_tokens: int = Field(default=16_384, ge=1)
    """Maximum tokens of one completion, including thinking."""


class JudgeRetryConfig(ConfigSection):
    call: float = Field(default=600.0, gt=0)
    """Timeout of one completion in seconds, from the moment it is sent."""
    retries: int = Field(default=2, ge=0, le=2)
    """Maximum number of retries of an unreadable or failed judgement, each with another seed."""
    silence: float = Field(default=30.0, gt=0)
    """Seconds without any reply after which a one-token probe checks whether the engine is alive."""
    canary: float = Field(default=30.0, gt=0)
    """Timeout of that probe in seconds; when it expires, the circuit breaker opens."""
    failures: int = Field(default=8, ge=1)
    """Consecutive failures after which the circuit breaker opens."""
    outage: float = Field(default=600.0, gt=0)
    """Seconds for which calls wait for an endpoint that is down or busy before they fail."""
    stage: float | None = Field(default=None, gt=0)
    """Deadline of one stage in seconds, after which the judge refuses calls; the stage stops and can be resumed."""


class NoiseConfig(ConfigSection):
    """Shares of the judge's calls that are spoilt on purpose, by one of these kinds each; 0 spoils none."""

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
        """`first 10%, longer 30% (half at 40 words)`; "" where there is no noise."""
        shares = {name: getattr(self, name) for name in ("unreadable", "wrong", "first", "longer")}
        listed = ", ".join(f"{name} {100 * share:g}%" for name, share in shares.items() if share)
        return f"{listed} (half at {self.half_length} words)" if self.longer else listed

    @model_validator(mode="after")
    def _is_a_share(self) -> Self:
        if self.total > 1:
            raise ValueError(f"the shares add up to {self.total:g}; a call is spoilt once, so at most to 1")
        return self


_MODEL_CANARIES = 0.01


class CanariesConfig(ConfigSection):
    """Questions with known verdicts, mixed into the judge's calls: they decide nothing but whether to go on."""

    rate: float | None = Field(default=None, ge=0, le=0.5)
    """Canaries per judgement; 0 asks none. When left out, 0.01 where a model judges, and 0 for a judge by rule, which
    cannot change."""
    least: float = Field(default=0.7, ge=0, le=1)
    """Share of the canaries of one role, and of one kind of them, that a judge has to get right: a stage stops with
    exit 75 where the 99 % interval of the share lies below. 0 never stops."""
    enough: int = Field(default=10, ge=1)
    """Canaries of a role or kind below which nothing is stopped."""
    file: str | None = None
    """JSON lines with cases of your own; when left out, cases are made from the run's documents."""


class JudgeConfig(ConfigSection):
    kind: Literal["lexical", "verifier", "model"] = "lexical"
    """`lexical` checks facts by rule and works only on the embedded world; `verifier` only compares boxed answers with
    the reference; `model` calls an endpoint."""
    endpoint: EndpointConfig = EndpointConfig()
    """Endpoint of the judge model; used for every role without an endpoint of its own."""
    endpoints: RoleEndpointsConfig = RoleEndpointsConfig()
    """Endpoints for individual roles."""
    evaluate: tuple[EndpointConfig, ...] = ()
    """Endpoints of judges that decide and train nobody: they grade and compare held-out answers. Promotion goes by the
    first, and `scope eval` asks each. When left out, the judge that trains decides, too."""
    verdict: Literal["written", "token"] = "written"
    """Form of gates, grades and preferences: reasoning with a verdict (the paper), or one constrained token."""
    gate_call: CallConfig = CallConfig(temperature=0.0)
    """Sampling of gates."""
    rubric_call: CallConfig = CallConfig(temperature=0.0, max_tokens=8192)
    """Sampling of rubrics (Table 9: T=0, 8,192 tokens)."""
    grade_call: CallConfig = CallConfig()
    """Sampling of grades (Table 9: T=0.6, 16,384 tokens)."""
    compare_call: CallConfig = CallConfig()
    """Sampling of comparisons, selections and scores."""
    max_chars: int = Field(default=48_000, ge=1000)
    """Maximum characters of all candidates in one prompt; longer candidates are cut, all to the same length. Where the
    prompt is still too long for the judge's context, the limit is halved until it fits."""
    truncation: Truncation = Truncation.END
    """What a text that is too long for a prompt loses: its end, or its middle."""
    concurrency: int = Field(default=256, ge=1)
    """Maximum concurrent requests to one endpoint."""
    patience: JudgeRetryConfig = JudgeRetryConfig()
    """Timeouts and retries of judge calls."""
    allowed_hosts: tuple[str, ...] | None = None
    """Hosts that may be called; when left out, the hosts of the endpoints."""
    cache: str | None = "judgements.sqlite"
    """File of cached judgements, relative to the run's folder; null disables the cache."""
    prompts: str = "wikipedia"
    """Prompt pack that supplies the judge prompts that the run's own pack lacks."""
    gates: tuple[Gate, ...] | None = None
    """Quality gates of a task; when left out, those of the prompt pack. An empty list is the paper's ablation."""
    failure_budget: float = Field(default=0.02, ge=0, le=1)
    """Share of failed verdicts above which a stage stops with exit 75, once it has made at least 50 calls."""
    noise: NoiseConfig = NoiseConfig()
    """Errors that a judge by rule makes on purpose, for experiments on judges that err."""
    canaries: CanariesConfig = CanariesConfig()
    """Questions with known verdicts, by which a judge that fails is noticed."""

    def endpoint_of(self, role: JudgeRole) -> EndpointConfig:
        """The endpoint of a role."""
        own: EndpointConfig | None = getattr(self.endpoints, role.value)
        return own or self.endpoint

    @property
    def deciding(self) -> tuple["JudgeConfig", ...]:
        """A judge for each endpoint of `evaluate`, which fills every role; without any, the judge that trains."""
        if self.kind != "model" or not self.evaluate:
            return (self,)
        alone = {"endpoints": RoleEndpointsConfig(), "evaluate": ()}
        return tuple(self.model_copy(update={"endpoint": endpoint, **alone}) for endpoint in self.evaluate)

    @property
    def canary_rate(self) -> float:
        """Canaries per judgement: as set, else what is usual for this kind of judge."""
        if self.canaries.rate is not None:
            return self.canaries.rate
        return _MODEL_CANARIES if self.kind == "model" else 0.0

    def call_of(self, role: JudgeRole) -> CallConfig:
        """The sampling of a role's completions."""
        match role:
            case JudgeRole.GATES:
                return self.gate_call
            case JudgeRole.RUBRIC:
                return self.rubric_call
            case JudgeRole.GRADE:
                return self.grade_call
            case JudgeRole.COMPARE:
                return self.compare_call

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        placed = self.endpoint.base_url or all(self.endpoint_of(role).base_url for role in JudgeRole)
        if self.kind == "model" and not placed:
            raise ValueError(
                "a model judge needs judge.endpoint.base_url, for example http://127.0.0.1:8000/v1"
            )
        return self

    @model_validator(mode="after")
    def _evaluators_are_reachable(self) -> Self:
        if self.evaluate and self.kind != "model":
            raise ValueError(
                f"evaluate names endpoints, found kind {self.kind}; use kind: model, or leave it out"
            )
        if not all(endpoint.base_url for endpoint in self.evaluate):
            raise ValueError(
                "every endpoint of evaluate needs a base_url, for example http://127.0.0.1:8001/v1"
            )
        return self

    @model_validator(mode="after")
    def _canaries_can_be_judged(self) -> Self:
        if self.kind == "verifier" and self.canaries.rate:
            raise ValueError(
                f"canaries.rate is {self.canaries.rate:g}, but kind verifier compares boxed answers and reads no text; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _noise_can_be_borne(self) -> Self:
        if self.noise.total and self.kind == "model":
            raise ValueError(
                f"noise ({self.noise.description}) is for judges by rule, found kind model, which errs by itself; "
                "leave noise out, or use kind lexical"
            )
        if self.noise.unreadable > self.failure_budget:
            raise ValueError(
                f"noise.unreadable ({self.noise.unreadable:g}) is over failure_budget ({self.failure_budget:g}), so "
                "every stage would stop; raise judge.failure_budget above it"
            )
        return self


# The weights are checked at the start, and the tokenizer tells what hostile texts may not spell: no judgement changes.
_WHERE = {"base_url", "replicas", "api_key_env", "weights", "tokenizer"}
OPERATION: dict[str, Any] = {
    "canaries": True,
    "concurrency": True,
    "patience": True,
    "allowed_hosts": True,
    "cache": True,
    "endpoint": _WHERE,
    "endpoints": dict.fromkeys(RoleEndpointsConfig.model_fields, _WHERE),
    "evaluate": {"__all__": _WHERE},
}
"""Operational settings of the judge, which do not affect judgements: they may change within a run."""
