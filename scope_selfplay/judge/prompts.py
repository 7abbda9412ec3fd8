"""What a model judge is asked: each role's prompt from the pack, every untrusted slot in a fence. Pure.

What differs comes last in a prompt (task, then answer, then criterion; the pack sees to it), and the request for
a single token comes last of all, so that prompts share the longest beginnings.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from scope_selfplay.config import JudgeConfig, JudgeRole
from scope_selfplay.gates import GATES, Gate
from scope_selfplay.judge.fences import Fencer
from scope_selfplay.judge.parsing import (
    parse_correctness,
    parse_match,
    parse_preference,
    parse_rating,
    parse_rubric,
    parse_score,
    parse_two_scores,
    parse_winners,
)
from scope_selfplay.judge.protocol import DIMENSIONS, Scale, Style, View
from scope_selfplay.judge.shown import Shown, shown
from scope_selfplay.prompts import Pack, PromptRole
from scope_selfplay.schemas import Criterion, Document, Outcome, Rollout, Rubric, Task
from scope_selfplay.untrusted_text import ControlTags
from scope_selfplay.untrusted_text.cleaning import FAMILIES

T = TypeVar("T")
_LEAST_CHARACTERS = 125
"""A text that is cut shorter than this can hardly be judged."""
Reader = Callable[[str], T | None]

SCORES = {"1": True, "0": False}
"""What a gate or a grade may be as one token."""
PREFERENCES = {"A": Outcome(1.0, 0.0), "B": Outcome(0.0, 1.0), "T": Outcome(0.5, 0.5)}
"""What a preference may be as one token; T is a tie."""
_TENTH = r"(10|[0-9](\.[0-9])?)"
_RATING = ('\\{"score": ' + _TENTH + "\\}", "Answer at once with the JSON object and nothing before it.")
_SHORT = {
    PromptRole.COMPARE_SCORES: (
        f"<first>{_TENTH}</first>\n<second>{_TENTH}</second>",
        "Write no reasoning this time. Answer at once with the two score blocks, each on a line of its own.",
    ),
    PromptRole.SCORE_IMPLICIT: _RATING,
    PromptRole.SCORE_EXPLICIT: _RATING,
    PromptRole.SCORE_ANSWER: _RATING,
}
"""What a verdict of a few tokens looks like where one token is not enough, and how it is asked for."""
_ONE_SCORE = "Write no reasoning and no tags this time. Answer at once with one character: 1 or 0."
_ONE_PREFERENCE = (
    "Write no analysis and no box this time. Answer at once with one letter: A, B, or T for a tie."
)

ROLE_OF_PROMPT = {
    **{PromptRole.of_gate(gate): JudgeRole.GATES for gate in Gate},
    PromptRole.RUBRIC: JudgeRole.RUBRIC,
    PromptRole.RUBRIC_DIMENSIONS: JudgeRole.RUBRIC,
    PromptRole.GRADE: JudgeRole.GRADE,
    PromptRole.COMPARE_SCORES: JudgeRole.COMPARE,
    PromptRole.COMPARE_PREFERENCE: JudgeRole.COMPARE,
    PromptRole.COMPARE_ANSWERS: JudgeRole.COMPARE,
    PromptRole.SELECT: JudgeRole.COMPARE,
    PromptRole.SCORE_IMPLICIT: JudgeRole.COMPARE,
    PromptRole.SCORE_EXPLICIT: JudgeRole.COMPARE,
    PromptRole.SCORE_ANSWER: JudgeRole.COMPARE,
    PromptRole.SCORE_CORRECTNESS: JudgeRole.COMPARE,
    PromptRole.SCORE_PROOF: JudgeRole.COMPARE,
    PromptRole.SCORE_REFERENCE: JudgeRole.COMPARE,
}
"""Every judge role of a pack and who answers it."""


def comparison_role(style: Style) -> PromptRole:
    """The prompt by which a pair is judged in this style."""
    match style:
        case Style.SCORES | Style.CORE_SCORES:
            return PromptRole.COMPARE_SCORES
        case Style.PREFERENCE:
            return PromptRole.COMPARE_PREFERENCE
        case Style.ANSWERS:
            return PromptRole.COMPARE_ANSWERS


class JudgePrompt(NamedTuple, Generic[T]):
    """A rendered prompt, and how its completion is read: None for what cannot be read.

    `choices`: the one token that may come back. `pattern`: what a short reply matches. A written verdict has neither.
    `repeat`: prompts that differ in it alone are different questions: each is asked, with draws of its own.
    """

    role: PromptRole
    prompt: str
    read: Reader[T]
    choices: tuple[str, ...] = ()
    pattern: str = ""
    repeat: int = 0
    subject: str = ""
    """The task: prompts about the same one share their beginning."""
    shorter: "Callable[[], JudgePrompt[T]] | None" = None
    """The same question with texts of half the length, where it does not fit the judge's context."""


P = ParamSpec("P")


def _can_be_shorter(
    ask: "Callable[Concatenate[JudgePrompts, P], JudgePrompt[T]]",
) -> "Callable[Concatenate[JudgePrompts, P], JudgePrompt[T]]":
    @wraps(ask)
    def with_shorter(self: "JudgePrompts", *args: P.args, **kwargs: P.kwargs) -> JudgePrompt[T]:
        task = next((each for each in (*args, *kwargs.values()) if isinstance(each, Task)), None)
        prompt = ask(self, *args, **kwargs)._replace(subject=task.text if task is not None else "")
        if (halved := self.halved()) is None:
            return prompt
        return prompt._replace(shorter=lambda: with_shorter(halved, *args, **kwargs))

    return with_shorter  # type: ignore[return-value]  # `wraps` types the wrapper by itself


class JudgePrompts:
    """Makes a run's prompts from a pack, as the config says.

    `key` is the secret of the run's fences (`fence_key`), `tags` what its judge takes for control.
    """

    def __init__(self, pack: Pack, config: JudgeConfig, *, key: bytes, tags: ControlTags = FAMILIES) -> None:
        self._made_of = (pack, config, key, tags)
        self._pack = pack
        self._fencer = Fencer(key, limit=config.max_chars, truncation=config.truncation, tags=tags)
        self._budget = config.max_chars
        self._half: JudgePrompts | None = None
        self._single_token = config.verdict == "token"
        self._native_thinking = {role for role in JudgeRole if config.endpoint_of(role).native_thinking}

    def halved(self) -> "JudgePrompts | None":
        """The same prompts with half the room for texts; None where too little would be left."""
        if self._budget < 2 * _LEAST_CHARACTERS:
            return None
        if self._half is None:
            pack, config, key, tags = self._made_of
            half = config.model_copy(update={"max_chars": self._budget // 2})
            self._half = JudgePrompts(pack, half, key=key, tags=tags)
        return self._half

    @_can_be_shorter
    def gate(self, gate: Gate, task: Task, document: Document | None) -> JudgePrompt[bool]:
        """Raises ValueError without the document for a gate that shows it."""
        slots = {"task": self._task(task)}
        if "document" in GATES[gate].shows:
            if document is None:
                raise ValueError(f"task {task.id}: the {gate} gate needs the source document")
            slots["document"] = self._document(document, 1)
        return self._yes_or_no(PromptRole.of_gate(gate), **slots)

    @_can_be_shorter
    def rubric(self, task: Task, documents: Sequence[Document]) -> JudgePrompt[list[Criterion]]:
        shown = "\n\n".join(self._document(document, len(documents)) for document in documents)
        prompt = self._pack.render(
            PromptRole.RUBRIC, task_type=task.type.replace("_", " "), task=self._task(task), documents=shown
        )
        return JudgePrompt(PromptRole.RUBRIC, prompt, parse_rubric)

    @_can_be_shorter
    def dimensions(self, task: Task) -> JudgePrompt[list[Criterion]]:
        """Asks for a rubric from the query alone."""
        least, most = DIMENSIONS
        prompt = self._pack.render(PromptRole.RUBRIC_DIMENSIONS, task=self._task(task))
        read = partial(parse_rubric, least=least, most=most)
        return JudgePrompt(PromptRole.RUBRIC_DIMENSIONS, prompt, read)

    @_can_be_shorter
    def grade(self, task: Task, criterion: Criterion, answer: str) -> JudgePrompt[bool]:
        return self._yes_or_no(
            PromptRole.GRADE,
            task=self._task(task),
            answer=self._fencer.fence("answer", answer),
            criterion=self._fencer.fence("criterion", criterion.text),
        )

    @_can_be_shorter
    def compare(
        self, task: Task, pair: tuple[Rollout, Rollout], style: Style, rubric: Rubric | Criterion | None
    ) -> JudgePrompt[Outcome]:
        """Raises ValueError for one criterion in a style other than that of answers."""
        alone = rubric if isinstance(rubric, Criterion) else None
        whole = None if isinstance(rubric, Criterion) else self._rubric(rubric)
        if alone is not None and style is not Style.ANSWERS:
            raise ValueError(f"a comparison of the style {style} is not by one criterion")
        slots = {"task": self._task(task)}
        labels: list[str] = []
        for place, rollout in zip(("first", "second"), pair, strict=True):
            trace = shown(rollout, style.view)
            labels.append(self._fencer.label(trace.text, taken=labels))
            slots[place] = self._fencer.candidate(labels[-1], trace.parts, limit=self._budget // 2)
            slots[f"{place}_label"] = labels[-1]
        role = comparison_role(style)
        if style.is_scored:
            native, results = JudgeRole.COMPARE in self._native_thinking, style.view is View.TRACE
            flags = {"native_thinking": native, "results": results}
            prompt = self._pack.render(role, **slots, **flags, rubric=whole)
            return self._with_pattern(role, prompt, parse_two_scores)
        if style is Style.ANSWERS:
            criterion = None if alone is None else self._criterion(alone)
            prompt = self._pack.render(role, **slots, rubric=whole, criterion=criterion)
        else:
            prompt = self._pack.render(role, **slots, reference=self._reference(task))
        return self._with_choices(role, prompt, PREFERENCES, _ONE_PREFERENCE, parse_preference)

    @_can_be_shorter
    def select(
        self, task: Task, rubric: Rubric | None, candidates: Sequence[Rollout], winners: int
    ) -> JudgePrompt[list[int]]:
        """Candidates are shown in the order given. What is read are their 0-based numbers."""
        answers = [shown(candidate, View.ANSWER) for candidate in candidates]
        labels: list[str] = []
        for answer in answers:
            labels.append(self._fencer.label(answer.text, taken=labels))
        limit = self._budget // max(1, len(answers))
        blocks = [
            self._fencer.candidate(label, answer.parts, limit=limit)
            for label, answer in zip(labels, answers, strict=True)
        ]
        prompt = self._pack.render(
            PromptRole.SELECT,
            task=self._task(task),
            rubric=self._rubric(rubric),
            candidates="\n\n".join(blocks),
            winners=winners,
        )

        def read(completion: str) -> list[int] | None:
            return parse_winners(completion, labels, winners)

        return JudgePrompt(PromptRole.SELECT, prompt, read)

    @_can_be_shorter
    def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, scale: Scale
    ) -> JudgePrompt[float]:
        """Raises ValueError for a scale that needs one criterion, or none, and got the other."""
        if isinstance(rubric, Criterion) is not (scale is Scale.EXPLICIT):
            raise ValueError(f"a score of the {scale} scale is not by {type(rubric).__name__}")
        seen = shown(rollout, scale.view)
        if scale.of_trace:
            return self._mark(task, seen, PromptRole(f"score_{scale.value}"))
        slots = {"task": self._task(task), "answer": self._fencer.fence(*seen.parts[-1])}
        if isinstance(rubric, Criterion):
            prompt = self._pack.render(PromptRole.SCORE_EXPLICIT, **slots, criterion=self._criterion(rubric))
            return self._with_pattern(PromptRole.SCORE_EXPLICIT, prompt, parse_rating)
        if scale is Scale.REFERENCE:
            prompt = self._pack.render(
                PromptRole.SCORE_REFERENCE, **slots, reference=self._reference(task) or ""
            )
            return JudgePrompt(PromptRole.SCORE_REFERENCE, prompt, parse_match)
        if scale is Scale.ANSWER:
            prompt = self._pack.render(PromptRole.SCORE_ANSWER, **slots)
            return self._with_pattern(PromptRole.SCORE_ANSWER, prompt, parse_rating)
        prompt = self._pack.render(PromptRole.SCORE_IMPLICIT, **slots, rubric=self._rubric(rubric))
        return self._with_pattern(PromptRole.SCORE_IMPLICIT, prompt, parse_rating)

    def _mark(self, task: Task, trace: Shown, role: PromptRole) -> JudgePrompt[float]:
        """Asks for 1, 0.5 or 0 for a whole trace."""
        label = self._fencer.label(trace.text)
        slots = {"task": self._task(task), "trace": self._fencer.candidate(label, trace.parts)}
        prompt = self._pack.render(role, **slots, reference=self._reference(task))
        return JudgePrompt(role, prompt, parse_correctness)

    def _yes_or_no(self, role: PromptRole, **slots: str) -> JudgePrompt[bool]:
        native = ROLE_OF_PROMPT[role] in self._native_thinking
        prompt = self._pack.render(role, **slots, native_thinking=native)
        return self._with_choices(role, prompt, SCORES, _ONE_SCORE, parse_score)

    def _with_choices(
        self, role: PromptRole, prompt: str, choices: Mapping[str, T], request: str, written: Reader[T]
    ) -> JudgePrompt[T]:
        """As one token of `choices` where the config wants that, else as it is `written`."""
        if not self._single_token:
            return JudgePrompt(role, prompt, written)

        def read(completion: str) -> T | None:
            return choices.get(completion.strip())

        return JudgePrompt(role, f"{prompt.rstrip()}\n\n{request}", read, tuple(choices))

    def _with_pattern(self, role: PromptRole, prompt: str, read: Reader[T]) -> JudgePrompt[T]:
        if not self._single_token:
            return JudgePrompt(role, prompt, read)
        pattern, request = _SHORT[role]
        return JudgePrompt(role, f"{prompt.rstrip()}\n\n{request}", read, pattern=pattern)

    def _task(self, task: Task) -> str:
        return self._fencer.fence("task", task.text)

    def _document(self, document: Document, among: int) -> str:
        text = f"{document.title}\n{document.text}" if document.title else document.text
        return self._fencer.fence("document", text, limit=self._budget // among)

    def _rubric(self, rubric: Rubric | None) -> str | None:
        if rubric is None or not rubric.criteria:
            return None
        lines = [f"{row}. {_listed(criterion)}" for row, criterion in enumerate(rubric.criteria, start=1)]
        return self._fencer.fence("rubric", "\n".join(lines))

    def _criterion(self, criterion: Criterion) -> str:
        return self._fencer.fence("criterion", _listed(criterion))

    def _reference(self, task: Task) -> str | None:
        return None if task.reference is None else self._fencer.fence("reference", task.reference)


def _listed(criterion: Criterion) -> str:
    """`text | dimension | importance | title`, on one line."""
    fields = (criterion.text, criterion.dimension, criterion.priority.value, criterion.title)
    return " | ".join(" ".join(field.split()) for field in fields if field)
