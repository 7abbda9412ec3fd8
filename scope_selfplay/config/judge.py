"""Where the judge is asked, how it is sampled, and how long one waits for it."""

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from scope_selfplay.config.base import ConfigSection
from scope_selfplay.gates import Gate


class EndpointConfig(ConfigSection):
    base_url: str = ""
    """An OpenAI-compatible endpoint, such as `http://127.0.0.1:8000/v1`."""
    model: str | None = None
    """Name of the model there; the only one that the endpoint serves when left out."""
    revision: str = ""
    """Names the weights behind the model's name (their sha256, say); a cached judgement belongs to both."""
    weights: str | None = Field(default=None, pattern="^[0-9a-f]{8,64}$")
    """Hash of the weights that must be served, as `scope serve-model` prints it; checked at the start against the
    endpoint's `/info`, or against the end of the model's name where there is no such page (vLLM)."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    context: int | None = Field(default=None, ge=1)
    """Tokens that the model can hold; what the endpoint says when left out. No completion is asked to be longer."""
    native_thinking: bool = False
    """The model thinks by itself: prompts then ask for no `<think>` block."""
    template: dict[str, bool | int | str] = Field(default_factory=dict)
    """Settings of the model's chat template, such as `enable_thinking`."""


class JudgeRole(StrEnum):
    """What a judge model is asked as; `judge.endpoints` has a field for every role."""

    GATES = "gates"
    RUBRIC = "rubric"
    GRADE = "grade"
    COMPARE = "compare"


class RoleEndpointsConfig(ConfigSection):
    gates: EndpointConfig | None = None
    """Judges the gates instead of `judge.endpoint` (SCOPE, figure 4)."""
    rubric: EndpointConfig | None = None
    """Writes the rubrics instead of `judge.endpoint`."""
    grade: EndpointConfig | None = None
    """Grades answers instead of `judge.endpoint`."""
    compare: EndpointConfig | None = None
    """Compares, selects and scores instead of `judge.endpoint`: a held-out judge, for example."""


class CallConfig(ConfigSection):
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature; a second try is never greedy."""
    max_tokens: int = Field(default=16_384, ge=1)
    """Tokens of one completion, thinking included."""


class JudgeRetryConfig(ConfigSection):
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


class JudgeConfig(ConfigSection):
    kind: Literal["lexical", "verifier", "model"] = "lexical"
    """`lexical` checks facts by rule and understands the embedded world only; `verifier` compares boxed answers with
    the reference and judges nothing else; `model` asks an endpoint."""
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
    patience: JudgeRetryConfig = JudgeRetryConfig()
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

    def endpoint_of(self, role: JudgeRole) -> EndpointConfig:
        """Where a role's judge is served."""
        own: EndpointConfig | None = getattr(self.endpoints, role.value)
        return own or self.endpoint

    def call_of(self, role: JudgeRole) -> CallConfig:
        """How a role's completions are sampled."""
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


# What must be served is checked, and changes no judgement.
_WHERE = {"base_url", "api_key_env", "weights"}
OPERATION: dict[str, Any] = {
    "concurrency": True,
    "patience": True,
    "allowed_hosts": True,
    "cache": True,
    "endpoint": _WHERE,
    "endpoints": dict.fromkeys(RoleEndpointsConfig.model_fields, _WHERE),
}
"""Settings of the judge that say where and how fast, not what: a run may go on with others."""
