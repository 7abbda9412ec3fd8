"""What a role's prompt must use, may use, and must ask the model to write.

The code owns these contracts and fills the inputs; a pack owns the words. In a judge's prompts untrusted values
(documents, tasks, answers, trajectories) arrive already fenced by the caller; in a policy's `Pack.render` frames what
is `UNTRUSTED` where it could be taken for the prompt. prompts/README.md shows the same table; a test compares.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scope_selfplay.base.errors import Finding
from scope_selfplay.base.values import GATES, Gate
from scope_selfplay.base.yaml import ParsedYaml, RepeatedKeyError, YamlError, parse_yaml


class PromptRole(StrEnum):
    """One Markdown file of a pack; the value is the file's stem, that of a gate `gate_<name>`."""

    CHALLENGER = "challenger"
    CHALLENGER_NEXT = "challenger_next"
    CHALLENGER_INVALID = "challenger_invalid"
    CHALLENGER_FINAL = "challenger_final"
    SOLVER = "solver"
    SOLVER_READING = "solver_reading"
    vars().update({gate.label.upper(): gate.label for gate in Gate})
    RUBRIC = "rubric"
    GRADE = "grade"
    GUARD = "guard"
    RUBRIC_DIMENSIONS = "rubric_dimensions"
    COMPARE_SCORES = "compare_scores"
    COMPARE_PREFERENCE = "compare_preference"
    COMPARE_ANSWERS = "compare_answers"
    SELECT = "select"
    SCORE_IMPLICIT = "score_implicit"
    SCORE_EXPLICIT = "score_explicit"
    SCORE_ANSWER = "score_answer"
    SCORE_CORRECTNESS = "score_correctness"
    SCORE_PROOF = "score_proof"
    SCORE_REFERENCE = "score_reference"

    @classmethod
    def of_gate(cls, gate: Gate) -> "PromptRole":
        return cls(gate.label)

    @property
    def file_name(self) -> str:
        return f"{self}.md"


POLICY_ROLES = frozenset(role for role in PromptRole if role.startswith(("challenger", "solver")))
GATE_ROLES = {PromptRole.of_gate(gate): gate for gate in Gate}
GATE_EXAMPLES = 4
"""Fewest worked examples that a gate shows on each side; one example ends with a score alone on its line."""


class Output(StrEnum):
    """What the model is asked to write; a file's front matter names it."""

    SEARCH = "search"
    TASK = "task"
    ANSWER = "answer"
    SCORE = "score"
    RUBRIC = "rubric"
    TWO_SCORES = "two_scores"
    PREFERENCE = "preference"
    WINNERS = "winners"
    RATING = "rating"
    CORRECTNESS = "correctness"
    MATCH = "match"
    YES_NO = "yes_no"
    LETTER = "letter"
    CRITERIA = "criteria"


@dataclass(frozen=True)
class OutputForm:
    """`mentions`: what a prompt's own text must contain. `parsed`: what the code reads in the completion."""

    mentions: tuple[str, ...]
    parsed: str


OUTPUTS = {
    Output.SEARCH: OutputForm(
        (), "one search call in the syntax of the policy's dialect, after its thinking"
    ),
    Output.TASK: OutputForm(("<task>",), "the text inside the one `<task>` of the last turn"),
    Output.ANSWER: OutputForm(("<answer>",), "the text inside the one `<answer>` of the last turn"),
    Output.SCORE: OutputForm(
        ("<score>",),
        "a reply that is, after its thinking, one `<score>` with 0 or 1, behind which only tags without words may "
        "stand",
    ),
    Output.RUBRIC: OutputForm(
        ("<rubric>", '"text"', '"priority"'),
        "a reply that is, after its thinking, one JSON list inside `<rubric>`; each item "
        "has `text` and `priority` (critical, important, bonus or "
        "nice_to_have, which reads as bonus), and may have `title` and `dimension`; an `<unmet>` may follow, one "
        "JSON list of what the task demands and no criterion asks for",
    ),
    Output.TWO_SCORES: OutputForm(
        ("<first>", "<second>"),
        "a reply that is, after its thinking, one `<first>` and one `<second>` and nothing else, each with one decimal "
        "number from 0 to 10; equal is a tie",
    ),
    Output.PREFERENCE: OutputForm(
        (r"\boxed{A}", r"\boxed{B}", r"\boxed{Tie}"),
        r"the `\boxed{A}`, `\boxed{B}` or `\boxed{Tie}` that ends the reply and is not quoted; A is the attempt shown "
        "first",
    ),
    Output.WINNERS: OutputForm(
        ('"winners"',),
        'one JSON object `{"winners": [...]}` with exactly the asked number of distinct labels, which is the reply '
        "after its thinking or stands in its one code fence",
    ),
    Output.RATING: OutputForm(
        ('"score"',),
        'a reply that is, after its thinking, one JSON object `{"score": x}`, x a finite number from 0 to 10',
    ),
    Output.CORRECTNESS: OutputForm(
        (r"\boxed{1}", r"\boxed{0.5}", r"\boxed{0}"),
        r"the `\boxed{1}`, `\boxed{0.5}` or `\boxed{0}` that ends the reply and is not quoted",
    ),
    Output.MATCH: OutputForm(
        (r"\boxed{correct}", r"\boxed{incorrect}", r"\boxed{not attempted}"),
        r"the `\boxed{correct}`, `\boxed{incorrect}` or `\boxed{not attempted}` that ends the reply and is not quoted",
    ),
    Output.YES_NO: OutputForm(
        ("Yes or No",), "one token, `Yes` or `No`: how likely each was, against the judge's threshold"
    ),
    Output.LETTER: OutputForm(
        ("A or B",), "one token, `A` or `B`: how likely each was; A is the one that is shown first"
    ),
    Output.CRITERIA: OutputForm(
        ('"criteria"', '"text"', '"priority"'),
        "one JSON object whose `criteria` are a list as in a `rubric`, and which may have a list `unmet`; an engine "
        "with structured outputs is held to it",
    ),
}

SHORT = {
    Output.SCORE: Output.YES_NO,
    Output.PREFERENCE: Output.LETTER,
    Output.TWO_SCORES: Output.LETTER,
    Output.RUBRIC: Output.CRITERIA,
}
"""What a pack may ask for instead, without any reasoning: a token, or JSON alone. Small models keep to nothing else."""


@dataclass(frozen=True)
class Contract:
    """`required` inputs must be used, `optional` ones may be.

    `subject` is the one input that a policy must be shown even when it was taught its protocol beforehand.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    output: Output
    budget_tokens: int
    subject: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.required + self.optional

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What a pack may choose between; the first one is usual."""
        return (self.output, SHORT[self.output]) if self.output in SHORT else (self.output,)


CONTRACTS = {
    # 1,024 prompt tokens for the Challenger (Table 9) leave the rest to a 100-word passage and the task type.
    PromptRole.CHALLENGER: Contract(
        ("document_title", "document_text", "task_description", "search_turns", "search_syntax"),
        ("task_type", "language", "examples"),
        Output.TASK,
        800,
        "document_text",
    ),
    PromptRole.CHALLENGER_NEXT: Contract(("turns_left", "search_syntax"), (), Output.SEARCH, 200),
    PromptRole.CHALLENGER_INVALID: Contract(("search_syntax",), ("turns_left",), Output.SEARCH, 200),
    PromptRole.CHALLENGER_FINAL: Contract((), ("task_type", "document_title", "language"), Output.TASK, 300),
    PromptRole.SOLVER: Contract(
        ("question",),
        ("max_search_turns", "search_syntax", "result_syntax", "tools", "budget"),
        Output.ANSWER,
        600,
        "question",
    ),
    PromptRole.SOLVER_READING: Contract(("question",), ("passages",), Output.ANSWER, 300, "question"),
    **{
        PromptRole.of_gate(gate): Contract(
            terms.shows, ("native_thinking",), Output.SCORE, terms.budget_tokens
        )
        for gate, terms in GATES.items()
    },
    PromptRole.RUBRIC: Contract(("task_type", "task", "documents"), ("foreign",), Output.RUBRIC, 1200),
    PromptRole.GRADE: Contract(("answer", "criterion"), ("task", "native_thinking"), Output.SCORE, 1000),
    PromptRole.GUARD: Contract(("answer",), (), Output.YES_NO, 400),
    PromptRole.RUBRIC_DIMENSIONS: Contract(("task",), (), Output.RUBRIC, 1000),
    PromptRole.COMPARE_SCORES: Contract(
        ("task", "first", "second", "first_label", "second_label"),
        ("rubric", "results", "native_thinking"),
        Output.TWO_SCORES,
        1200,
    ),
    PromptRole.COMPARE_PREFERENCE: Contract(
        ("task", "first", "second"), ("reference", "first_label", "second_label"), Output.PREFERENCE, 800
    ),
    PromptRole.COMPARE_ANSWERS: Contract(
        ("task", "first", "second"),
        ("rubric", "criterion", "first_label", "second_label"),
        Output.PREFERENCE,
        800,
    ),
    PromptRole.SELECT: Contract(("task", "candidates", "winners"), ("rubric",), Output.WINNERS, 800),
    PromptRole.SCORE_IMPLICIT: Contract(("task", "answer"), ("rubric",), Output.RATING, 800),
    PromptRole.SCORE_EXPLICIT: Contract(("task", "answer", "criterion"), (), Output.RATING, 800),
    PromptRole.SCORE_ANSWER: Contract(("task", "answer"), (), Output.RATING, 800),
    PromptRole.SCORE_CORRECTNESS: Contract(("task", "trace"), ("reference",), Output.CORRECTNESS, 800),
    PromptRole.SCORE_PROOF: Contract(("task", "trace"), ("reference",), Output.CORRECTNESS, 800),
    PromptRole.SCORE_REFERENCE: Contract(("task", "reference", "answer"), (), Output.MATCH, 800),
}

UNTRUSTED = frozenset({"document_title", "document_text", "question", "passages"})
"""Inputs of a policy's prompts that somebody else wrote: only in a frame they repeat its headings, labels or tags."""

_TEXTS = "tools budget passages task_type examples foreign rubric criterion reference first_label second_label".split()
ABSENT: dict[str, str | bool] = {**dict.fromkeys(_TEXTS, ""), "results": False, "native_thinking": False}
ABSENT["language"] = "the language of the document"
"""What an optional input holds when the caller leaves it out; one that is not here must be given."""


@dataclass(frozen=True)
class YamlMapping(ParsedYaml):
    """A parsed mapping of a file."""

    values: dict[object, object]
    file: str

    def problem(self, message: str, *path: object) -> Finding:
        """A problem on the line of the deepest part of `path` that the file has."""
        return Finding(f"{self.file}:{self.line(*path)}", message)


def read_mapping(text: str, file: str, first_line: int = 1) -> YamlMapping | Finding:
    """Parse a YAML mapping that starts on `first_line` of `file`; an empty text is an empty mapping."""
    try:
        parsed = parse_yaml(text, first_line)
    except RepeatedKeyError as error:
        return Finding(f"{file}:{error.line or first_line}", f"{error.problem}; keep one of them")
    except YamlError as error:
        advice = "; quote texts that hold : # {{ or [" if error.line else ""
        return Finding(f"{file}:{error.line or first_line}", f"is not valid YAML: {error.problem}{advice}")
    values = {} if parsed.values is None else parsed.values
    if not isinstance(values, dict):
        return Finding(f"{file}:{first_line}", f"holds {type(values).__name__}; expected `key: value` lines")
    return YamlMapping(values, parsed.lines, file)


def listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "nothing"
