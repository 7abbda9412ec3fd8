"""What a model judge is asked: each role's prompt from the pack, every untrusted slot in a fence. Pure.

What differs comes last in a prompt (task, then answer, then criterion; the pack sees to it), and the request for
a single token comes last of all, so that prompts share the longest beginnings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from scope_selfplay.base.text import FAMILIES, ControlTags
from scope_selfplay.base.values import GATES, Criterion, Document, Outcome, Priority, Rollout, Rubric
from scope_selfplay.config.judge import JudgeConfig, JudgeRole
from scope_selfplay.corpus.screen import LANGUAGES, task_language
from scope_selfplay.judge.fences import Fencer, View, shown, text_outside
from scope_selfplay.judge.protocol import (
    CRITERIA,
    DIMENSIONS,
    PREFERENCES,
    GateQuestion,
    GradeQuestion,
    GuardQuestion,
    PairQuestion,
    Question,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
    grounded,
)
from scope_selfplay.judge.replies import (
    count_criteria,
    parse_correctness,
    parse_match,
    parse_preference,
    parse_rating,
    parse_rubric,
    parse_score,
    parse_two_scores,
    parse_unmet,
    parse_winners,
)
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import CONTRACTS, POLICY_ROLES, Output, PromptRole
from scope_selfplay.rewards.equations import priority_weight

T = TypeVar("T")
_LEAST_CHARACTERS = 125
"""A text that is cut shorter than this can hardly be judged."""
Reader = Callable[[str], T | None]

RANDOM_MODEL = "rehearsal"
"""What a judge is called whose verdicts are random on purpose (`serve-judge --rehearsal`)."""
SCORES = {"1": True, "0": False}
"""What a gate or a grade may be as one token."""
_ANSWERED_BY = {
    "gate": JudgeRole.GATES,
    "rubric": JudgeRole.RUBRIC,
    **dict.fromkeys(("grade", "guard"), JudgeRole.GRADE),
    **dict.fromkeys(("compare", "select", "score"), JudgeRole.COMPARE),
}
ROLE_OF_PROMPT = {
    role: _ANSWERED_BY[role.partition("_")[0]] for role in PromptRole if role not in POLICY_ROLES
}
"""Every judge role of a pack and who answers it."""


def has_guard(config: JudgeConfig, pack: Pack) -> bool:
    """Whether answers are asked about by `guard` beside their grades."""
    if PromptRole.GUARD not in pack.roles:
        return False
    by_token = config.verdict == "token" or pack.output_of(PromptRole.GRADE) is Output.YES_NO
    return by_token if config.guard is None else config.guard


class _Form(NamedTuple):
    """How a verdict is read that is written, up to the tag `stop`; where the config wants few tokens, the request for
    them, and the one token that may come back, or the pattern of a short reply. Without a reader the pack itself asks
    for the token.
    """

    read: Reader[Any] | None
    request: str = ""
    choices: Mapping[str, Any] = {}
    pattern: str = ""
    stop: str = ""


_TENTH = r"(10|[0-9](\.[0-9])?)"
_FORMS = {
    Output.SCORE: _Form(
        parse_score,
        "Write no reasoning and no tags this time. Answer at once with one character: 1 or 0.",
        choices=SCORES,
        stop="</score>",
    ),
    Output.TWO_SCORES: _Form(
        parse_two_scores,
        "Write no reasoning this time. Answer at once with the two score blocks, each on a line of its own.",
        pattern=f"<first>{_TENTH}</first>\n<second>{_TENTH}</second>",
        stop="</second>",
    ),
    Output.PREFERENCE: _Form(
        parse_preference,
        "Write no analysis and no box this time. Answer at once with one letter: A, B, or T for a tie.",
        choices=PREFERENCES,
    ),
    Output.RATING: _Form(
        parse_rating,
        "Answer at once with the JSON object and nothing before it.",
        pattern='\\{"score": ' + _TENTH + "\\}",
    ),
    Output.CORRECTNESS: _Form(parse_correctness),
    Output.MATCH: _Form(parse_match),
    Output.YES_NO: _Form(None, choices={"Yes": True, "No": False}),
    Output.LETTER: _Form(None, choices={"A": Outcome(1.0, 0.0), "B": Outcome(0.0, 1.0)}),
}
"""Of the outputs that are read alike whatever is asked; rubrics and selections are read by their questions. Of two
choices the first one is a yes, or a win of the first.
"""


class JudgePrompt(NamedTuple, Generic[T]):
    """A rendered prompt, and how its completion is read: None for what cannot be read.

    `choices`: the one token that may come back. `pattern`: what a short reply matches; `form`: what a long one does.
    A written verdict has none of them, and ends with the tag `stop`. `why` says what is wrong with an unreadable one.
    """

    prompt: str
    read: Reader[T]
    choices: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""
    stop: tuple[str, ...] = ()
    why: Callable[[str], str] = lambda completion: "not in the asked form"


class JudgePrompts:
    """Makes a run's prompts from a pack, as the config says.

    `key` is the secret of the run's fences (`fence_key`), `tags` what its judge takes for control.
    """

    def __init__(self, pack: Pack, config: JudgeConfig, *, key: bytes, tags: ControlTags = FAMILIES) -> None:
        self._pack, self._config, self._key, self._tags = pack, config, key, tags
        self._fencer = Fencer(key, limit=config.max_chars, truncation=config.truncation, tags=tags)
        self._budget = config.max_chars
        self._native_thinking = {role for role in JudgeRole if config.endpoint_of(role).native_thinking}

    def halved(self) -> "JudgePrompts | None":
        """The same prompts with half the room for texts; None where too little would be left."""
        if self._budget < 2 * _LEAST_CHARACTERS:
            return None
        half = self._config.model_copy(update={"max_chars": self._budget // 2})
        return JudgePrompts(self._pack, half, key=self._key, tags=self._tags)

    def render(self, question: Question[Any]) -> JudgePrompt[Any]:
        """Raises ValueError for a question that lacks what its prompt shows."""
        inputs = CONTRACTS[question.role].inputs
        slots = {name: value for name, value in self._slots(question).items() if name in inputs}
        prompt, output = self._pack.render(question.role, **slots), self._pack.output_of(question.role)
        match question:
            case RubricQuestion():
                least, most = CRITERIA if question.documents else DIMENSIONS
                read, why = partial(_read_rubric, question), partial(_why_no_rubric, least, most)
                # As the prompt's example has it, `{"text": "States that ..."`; nothing where it says no more.
                begins = re.search(r'"text": "([\w ]+ )\.\.\."', text_outside(prompt))
                kept = _rubric_form(least, most, begins[1] if begins else "")
                kept = kept if output is Output.CRITERIA else ""
                return JudgePrompt(prompt, read, form=kept, why=why)
            case SelectQuestion(winners=winners):
                labels, _ = self._candidates(question.candidates, View.ANSWER)
                return JudgePrompt(prompt, partial(parse_winners, labels=labels, winners=winners))
        form = _FORMS[output]
        if output is Output.LETTER and isinstance(question, PairQuestion):
            form = form._replace(choices={"A": Outcome(question.most, 0.0), "B": Outcome(0.0, question.most)})
        if form.read is not None and (self._config.verdict == "written" or not form.request):
            return JudgePrompt(prompt, form.read, stop=(form.stop,) if form.stop else ())
        reader = (lambda said: form.choices.get(said.strip())) if form.choices else form.read
        assert reader is not None
        return JudgePrompt(
            f"{prompt.rstrip()}\n\n{form.request}".rstrip(), reader, tuple(form.choices), form.pattern
        )

    def _slots(self, question: Question[Any]) -> dict[str, Any]:
        """What is known of a question, by the inputs of prompts; the contract of its own role says what is shown."""
        fence, task = self._fencer.fence, question.task
        slots: dict[str, Any] = {
            "task": fence("task", task.text, is_word_for_word=isinstance(question, RubricQuestion)),
            "reference": "" if task.reference is None else fence("reference", task.reference),
            "native_thinking": ROLE_OF_PROMPT[question.role] in self._native_thinking,
        }
        match question:
            case GateQuestion(gate=gate, document=document) if "document" in GATES[gate].shows:
                if document is None:
                    raise ValueError(f"task {task.id}: the {gate} gate needs the source document")
                return {**slots, "document": self._document(document, 1)}
            case GradeQuestion(criterion=criterion, answer=answer):
                return {
                    **slots,
                    "answer": fence("answer", answer),
                    "criterion": fence("criterion", criterion.text),
                }
            case GuardQuestion(answer=answer):
                return {**slots, "answer": fence("answer", answer)}
            case RubricQuestion(documents=documents) if documents:
                found = "\n\n".join(self._document(document, len(documents)) for document in documents)
                # In other languages the prompt's example would be copied as it stands, in English.
                wanted = self._pack.domain.language
                code = task_language(wanted, documents[0])
                foreign = None if code == "en" else wanted or LANGUAGES.get(code)
                kind = task.type.replace("_", " ")
                return {**slots, "task_type": kind, "documents": found, "foreign": foreign}
            case PairQuestion():
                return {**slots, **self._pair(question)}
            case SelectQuestion(rubric=rubric, candidates=candidates, winners=winners):
                blocks = "\n\n".join(self._candidates(candidates, View.ANSWER)[1])
                return {**slots, **self._judged_by(rubric), "candidates": blocks, "winners": winners}
            case ScoreQuestion():
                return {**slots, **self._scored(question)}
        return slots

    def _pair(self, question: PairQuestion) -> dict[str, Any]:
        style, rubric = question.style, question.rubric
        if isinstance(rubric, Criterion) and style is not Style.ANSWERS:
            raise ValueError(f"a comparison of the style {style} is not by one criterion")
        labels, blocks = self._candidates((question.first, question.second), style.view)
        names = ("first", "second", "first_label", "second_label")
        pair = dict(zip(names, (*blocks, *labels), strict=True))
        return {**pair, **self._judged_by(rubric), "results": style.view is View.TRACE}

    def _scored(self, question: ScoreQuestion) -> dict[str, str]:
        scale, rubric = question.scale, question.rubric
        if isinstance(rubric, Criterion) is not (scale is Scale.EXPLICIT):
            raise ValueError(f"a score of the {scale} scale is not by {type(rubric).__name__}")
        if scale.of_trace:
            _, (trace,) = self._candidates((question.rollout,), scale.view)
            return {"trace": trace}
        answer = self._fencer.fence(*shown(question.rollout, scale.view).parts[-1])
        return {"answer": answer, **self._judged_by(rubric)}

    def _judged_by(self, rubric: Rubric | Criterion | None) -> dict[str, str]:
        """A rubric or one criterion of it; nothing where there is none."""
        if isinstance(rubric, Criterion):
            return {"criterion": self._fencer.fence("criterion", _listed(rubric))}
        if rubric is None or not rubric.criteria:
            return {}
        lines = [f"{row}. {_listed(criterion)}" for row, criterion in enumerate(rubric.criteria, start=1)]
        return {"rubric": self._fencer.fence("rubric", "\n".join(lines))}

    def _candidates(self, rollouts: Sequence[Rollout], view: View) -> tuple[list[str], list[str]]:
        """Their labels, and each in a fence with its label; they share the room."""
        seen = [shown(rollout, view) for rollout in rollouts]
        labels: list[str] = []
        for each in seen:
            labels.append(self._fencer.label(each.text, taken=labels))
        limit = self._budget // max(1, len(seen))
        pairs = zip(labels, seen, strict=True)
        return labels, [self._fencer.candidate(label, each.parts, limit=limit) for label, each in pairs]

    def _document(self, document: Document, among: int) -> str:
        text = f"{document.title}\n{document.text}" if document.title else document.text
        return self._fencer.fence("document", text, limit=self._budget // among, is_word_for_word=True)


def _read_rubric(question: RubricQuestion, completion: str) -> Rubric | None:
    """One from the query alone is weighted by importance."""
    least, most = CRITERIA if question.documents else DIMENSIONS
    criteria = parse_rubric(completion, least=least, most=most)
    if criteria is None:
        return None
    if question.documents:
        whole = Rubric(task_id=question.task.id, criteria=tuple(criteria), unmet=parse_unmet(completion))
        kept = grounded(whole, question.task, question.documents)
        # Too little is left: what it demands of a document is invented or copied, so that it is asked for again.
        return None if whole is not kept and len(kept.criteria) < least else kept
    weighted = (each.model_copy(update={"weight": priority_weight(each.priority)}) for each in criteria)
    return Rubric(task_id=question.task.id, criteria=tuple(weighted))


def _why_no_rubric(least: int, most: int, completion: str) -> str:
    found = count_criteria(completion)
    if found is None:
        return "no list of criteria in the asked form"
    if not least <= found <= most:
        return f"{found} criteria, {least} to {most} wanted"
    is_read = parse_rubric(completion, least=least, most=most) is not None
    return "criteria repeat the task, or stand in no document" if is_read else "a criterion cannot be read"


def _rubric_form(least: int, most: int, begins: str) -> str:
    """For an engine with structured outputs, which a JSON schema would let wander off in white space; lengths are in
    characters.
    """
    priorities = "|".join(each.value for each in Priority)
    # Not the example's own three dots.
    least_letters = 19 if begins else 8
    item = (
        rf'\{{"text": "{begins}[^" .…\\\n][^"\\\n]{{{least_letters},219}}", "priority": "({priorities})"\}}'
    )
    return rf'\{{"criteria": \[{item}(, {item}){{{least - 1},{most - 1}}}\]\}}'


def _listed(criterion: Criterion) -> str:
    """`text | dimension | importance | title`, on one line."""
    fields = (criterion.text, criterion.dimension, criterion.priority.value, criterion.title)
    return " | ".join(" ".join(field.split()) for field in fields if field)
