"""The values that everything shares, in the order in which a run makes them.

All are frozen and refuse unknown fields. Optional means "not known", never "zero": a verdict that could not
be read is `None` all the way to the reward.
"""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from scope_selfplay.base.suspicions import Suspicion, suspicions


class Gate(StrEnum):
    """A yes-or-no question that a judge answers about a proposed task before anything is spent on it.

    The value is the name in configs, prompt packs and records; the prompt is `gate_<value>.md`.
    """

    ENTITY = "entity"
    SOURCE = "source"
    SAFETY = "safety"

    @property
    def label(self) -> str:
        """`gate_<name>`: the gate's prompt role, rejection reason and health signal."""
        return f"gate_{self}"


@dataclass(frozen=True)
class GateTerms:
    """What a gate is shown, and what a low share of passing tasks means."""

    shows: tuple[str, ...]
    """Prompt inputs that the judge sees, in the order of the contract: `task`, and perhaps `document`."""
    healthy_share: float
    """The health report warns when a smaller share of the tasks passes."""
    low_share_means: str
    budget_tokens: int = 2000
    """The most tokens that the prompt's own words may take."""
    default: bool = False
    """Whether a domain that names no gates uses it."""


GATES: Mapping[Gate, GateTerms] = {
    Gate.ENTITY: GateTerms(("task",), 0.2, "tasks do not name what they ask about", default=True),
    Gate.SOURCE: GateTerms(("document", "task"), 0.2, "tasks leave their source document", default=True),
    Gate.SAFETY: GateTerms(("task",), 0.8, "look at the tasks that were refused"),
}
"""To add a gate, give it a member and a row here, and write its prompt `gate_<name>.md`; a pack that uses it names it
under `gates:` in its domain.yaml and in its kustomization.yaml. The rest of the code follows: the prompt's contract,
the judge's request, the rejection reason, the columns of the store, the share that the health report watches. Canaries
of it are asked once `judge.cases` knows a task that it must refuse.
"""

DEFAULT_GATES = tuple(gate for gate in Gate if GATES[gate].default)

_SEPARATOR = "\x1f"

Key = tuple[str | int, ...]
"""Names one random draw: (run seed, iteration, stage, document or task id, rollout, turn or criterion, attempt)."""


def seed_from(*key: str | int) -> int:
    """A 63-bit seed for one random draw; equal keys give equal seeds on every machine."""
    return int.from_bytes(_digest([f"{type(part).__name__[0]}{part}" for part in key], 8), "big") >> 1


def rng_from(*key: str | int) -> random.Random:
    return random.Random(seed_from(*key))


def numpy_rng_from(*key: str | int) -> np.random.Generator:
    return np.random.default_rng(seed_from(*key))


def content_id(prefix: str, *parts: str | int) -> str:
    """An id that follows from the content: `prefix-` and 12 hex digits."""
    return f"{prefix}-{_digest(list(map(str, parts)), 6).hex()}"


def _digest(parts: list[str], size: int) -> bytes:
    """Parts that hold the separator, as a document's id could, are told apart by JSON."""
    if any(_SEPARATOR in part for part in parts):
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=size, person=b"json").digest()
    return hashlib.blake2b(_SEPARATOR.join(parts).encode(), digest_size=size).digest()


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(Value):
    """One source document, or one chunk of a longer one."""

    id: str
    title: str
    text: str
    source: str = ""
    metadata: dict[str, str] = Field(default_factory=dict)
    """Where it is from, as far as its file says: url, date, language, licence, author, encoding. Passages have none."""

    def __hash__(self) -> int:
        return hash(self.id)


class CorpusReader(StrEnum):
    """How source documents are read: a file of JSON lines, or a folder by whole files or by sections."""

    JSONL = "jsonl"
    TEXT_FILES = "text_files"
    MARKDOWN_SECTIONS = "markdown_sections"


class Passage(Document):
    """A document as a search returned it, cut to the tool-response budget."""

    score: float = 0.0


class Task(Value):
    """What the Solver is asked. `evidence_ids` are the passages that the Challenger retrieved while writing it,
    `search_turns` the searches that it made, `assigned_turns` those that it was told to make.

    `reference` is the right answer where one is known, as for a math problem; a judge or a verifier may see it. Of a
    task with a short answer `span` is where that begins and ends in the document, in characters.
    """

    id: str
    text: str
    type: str
    document_id: str
    evidence_ids: tuple[str, ...] = ()
    search_turns: int = Field(default=1, ge=0)
    assigned_turns: int | None = None
    reference: str | None = None
    span: tuple[int, ...] | None = Field(default=None, exclude_if=lambda found: found is None)


class Priority(StrEnum):
    CRITICAL = "critical"
    IMPORTANT = "important"
    BONUS = "bonus"


class Check(StrEnum):
    """Criteria that are decided by a rule against the task's reference answer, without a judge."""

    BOXED = "boxed"
    TEXT = "text"


class Criterion(Value):
    text: str
    priority: Priority = Priority.IMPORTANT
    weight: float = Field(default=1.0, ge=0.0)
    title: str = ""
    dimension: str = ""
    check: Check | None = None
    evidence: tuple[str, ...] | None = None
    """The documents in which it can be read, of those that the rubric was written from; None: not said."""


class Rubric(Value):
    """`unmet`: what the task demands and no criterion asks for, as where no document answers it; None: not said."""

    task_id: str
    criteria: tuple[Criterion, ...]
    unmet: tuple[str, ...] | None = None


class Role(StrEnum):
    CHALLENGER = "challenger"
    SOLVER = "solver"


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class ToolFault(StrEnum):
    """Why a call brought no result. The policy is told, and goes on."""

    UNKNOWN = "unknown_tool"
    ARGUMENTS = "bad_arguments"
    SPENT = "calls_spent"
    ERROR = "error"
    TIMED_OUT = "timed_out"


class ToolCall(Value):
    """A call and what the policy was shown. `arguments` are JSON, or a call that is none; `sources` name documents."""

    tool: str
    arguments: str = "{}"
    result: str = ""
    sources: tuple[str, ...] = ()
    seconds: float = 0.0
    fault: ToolFault | None = None


class Turn(Value):
    """One assistant turn: exactly the ids that the policy saw and sampled, and what the dialect read in them.

    A search is its `query` and `passages`. Where an episode has other tools too, `call` is every call of it, a search
    included; an episode that only searches has none.
    """

    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    text: str = ""
    thinking: str | None = None
    query: str | None = None
    passages: tuple[Passage, ...] = ()
    call: ToolCall | None = Field(default=None, exclude_if=lambda call: call is None)

    @property
    def uses_tool(self) -> bool:
        """Whether a tool was asked: search, or another one as it wants to be asked."""
        refused = (ToolFault.UNKNOWN, ToolFault.ARGUMENTS, ToolFault.SPENT)
        return self.query is not None or (self.call is not None and self.call.fault not in refused)


class RolloutStatus(StrEnum):
    FINISHED = "finished"
    TRUNCATED = "truncated"
    FAILED = "failed"


class RolloutFault(StrEnum):
    """Why a rollout failed: the policy's engine, the retriever, a tool's server, or a first prompt over the limit."""

    ENGINE = "engine"
    SEARCH = "search"
    TOOL = "tool"
    PROMPT = "prompt"


class Rollout(Value):
    """One episode of one policy. `subject_id` is the document (Challenger) or the task (Solver) it worked on."""

    id: str
    role: Role
    checkpoint: str
    subject_id: str
    turns: tuple[Turn, ...]
    answer: str | None = None
    task: str | None = None
    status: RolloutStatus = RolloutStatus.FINISHED
    fault: RolloutFault | None = None
    error: str = ""
    index: str = ""
    """The identity of the index and corpus that it could search."""
    form_kept: bool = Field(default=False, exclude_if=lambda kept: not kept)
    """Whether the engine kept its turns in form (partners.keep_form), so that not all of their tokens were drawn."""
    injection_suspect: tuple[Suspicion, ...] | None = Field(
        default=None, exclude_if=lambda found: found is None
    )
    """Signs of an attack in its answer or task; None until it is recorded, so that no reward and no judge sees them."""

    @property
    def searches(self) -> int:
        return sum(turn.query is not None for turn in self.turns)

    @property
    def thinking_turns(self) -> int:
        return sum(turn.thinking is not None for turn in self.turns)

    @classmethod
    def of_answer(cls, answer: str | None, name: str = "", **whose: str) -> "Rollout":
        """A Solver's, of whom nothing but the answer is known, and whose it may be: `checkpoint`, `subject_id`."""
        known = {"checkpoint": "", "subject_id": "", **whose}
        return cls.model_validate({"id": name, "role": Role.SOLVER, "turns": (), "answer": answer, **known})

    def without_ids(self) -> "Rollout":
        """As the corpus keeps it: text, and what is suspect in it; token ids stay with the training rows."""
        bare = {"prompt_ids": (), "ids": (), "logprobs": None}
        turns = tuple(turn.model_copy(update=bare) for turn in self.turns)
        signs = suspicions(self.answer or self.task or "")
        return self.model_copy(update={"turns": turns, "injection_suspect": signs})


class Fault(StrEnum):
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    UNAVAILABLE = "unavailable"


class Verdict(Value):
    """One judgement. `value` is None exactly when `fault` says why; `probability` is the soft verdict, if asked for."""

    value: bool | None
    probability: float | None = None
    reasoning: str = ""
    fault: Fault | None = None
    attempts: int = 1
    tokens_in: int = 0
    tokens_out: int = 0
    cached: bool = False


class Grade(Value):
    """A rollout's verdicts, one per criterion in rubric order, and their weighted mean (equation 1)."""

    rollout_id: str
    verdicts: tuple[Verdict, ...]
    score: float | None

    @property
    def is_whole(self) -> bool:
        """Whether no verdict is missing because of a fault, so that grading again would change nothing."""
        return self.score is not None and all(verdict.fault is None for verdict in self.verdicts)


class Outcome(NamedTuple):
    """The result of a match: two scores on one linear scale of any sign; equal scores are a tie."""

    first: float
    second: float

    @property
    def margin(self) -> float:
        """By how much the first lies above the second."""
        return self.first - self.second

    @property
    def share(self) -> float:
        """What the first took of a win: 1, 1/2 or 0."""
        return 0.5 if self.first == self.second else float(self.first > self.second)


class Truncation(StrEnum):
    """The part of a text that is cut where it is too long."""

    END = "end"
    MIDDLE = "middle"


class Comparison(Value):
    """Two rollouts in the order in which the judge was shown them; `repeat` is above 0 where they had met before."""

    first_id: str
    second_id: str
    outcome: Outcome | None
    verdict: Verdict
    repeat: int = 0


class Selection(Value):
    """The winners that a judge picked from candidates shown together; None where no verdict came.

    `candidate_ids` are in the order in which the judge was shown them; `repeat` is the number of the tournament that
    asked, from 0. `verdict` is true where winners came.
    """

    candidate_ids: tuple[str, ...]
    winner_ids: tuple[str, ...] | None
    repeat: int = 0
    verdict: Verdict | None = None


class Score(Value):
    """A number that a judge gave an answer, on the scale's own range; `criterion` is its row in the rubric.

    `verdict` is true where a number came.
    """

    rollout_id: str
    scale: str
    value: float | None
    criterion: int | None = None
    verdict: Verdict | None = None


class CandidateStatus(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNRESOLVED = "unresolved"


class Reason(StrEnum):
    """Why a candidate ended as it did; a refusal by a gate is `gate_<name>`."""

    ACCEPTED = "accepted"
    NO_TASK = "no_task"
    # Of tasks with a short answer.
    NO_QUESTION = "no_question"
    NO_SPAN = "no_span"
    LONG_ANSWER = "long_answer"
    GIVEN_AWAY = "given_away"
    NO_SUBJECT = "no_subject"
    MISREAD = "misread"
    KNOWN = "known"
    UNREAD = "unread"
    # GATE_ENTITY = "gate_entity" and so on: a member for each gate of the table.
    vars().update({gate.label.upper(): gate.label for gate in Gate})
    RUBRIC_FAILED = "rubric"
    UNGROUNDED = "ungrounded"
    TOO_HARD = "too_hard"
    TOO_EASY = "too_easy"
    TOO_ALIKE = "too_alike"
    DUPLICATE = "duplicate"
    JUDGE_FAILED = "judge_failed"
    SEARCH_FAILED = "search_failed"
    TOOL_FAILED = "tool_failed"
    ENGINE_FAILED = "engine_failed"
    PROMPT_TOO_LONG = "prompt_too_long"

    @classmethod
    def refused_by(cls, gate: Gate) -> "Reason":
        return cls(gate.label)


class Provenance(Value):
    """Where a record comes from: enough to make it again."""

    run: str
    iteration: int
    stage: str
    document_id: str
    challenger: str = ""
    solver: str = ""
    judge: str = ""
    index: str = ""
    prompt_hash: str = ""
    config_hash: str = ""
    seed: int = 0
    version: str = ""


class ReaderAnswer(Value):
    """What a reader answered, with the passages open or without, and its F1 against the task's answer: all that is
    kept of it, because its one turn is this answer, and its prompt is made of the task and the corpus.
    """

    answer: str | None
    f1: float
    is_open: bool


class Candidate(Value):
    """What became of a document: an accepted task, one rejected for a reason, or one that a fault left unresolved."""

    id: str
    status: CandidateStatus
    reason: Reason
    task: Task | None = None
    gates: dict[Gate, Verdict] = Field(default_factory=dict)
    rubric: Rubric | None = None
    rollout_ids: tuple[str, ...] = ()
    challenger_rollout_id: str = ""
    mean: float | None = None
    injection_suspect: tuple[Suspicion, ...] | None = Field(
        default=None, exclude_if=lambda found: found is None
    )
    """Signs of an attack in the task's text; None where there is none, or nobody looked."""
    document_suspect: tuple[Suspicion, ...] | None = Field(
        default=None, exclude_if=lambda found: found is None
    )
    """The same of the document that it was made from."""
    no_rubric: str | None = Field(default=None, exclude_if=lambda words: words is None)
    """What the judge said where no rubric could be read, and why."""
    readings: tuple[ReaderAnswer, ...] = Field(default=(), exclude_if=lambda found: not found)
    """Of a task with a short answer."""
    provenance: Provenance
