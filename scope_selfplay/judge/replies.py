"""A judge's completion, read strictly: one verdict in the asked form, or None; None is never a number.

The verdict is the whole reply after its thinking, of whatever kind the thinking was: a judge quotes what it judges, and
what it quotes may hold a verdict. A judge that reasons in the open ends its reply with a box, of which the last counts;
one that it only reports ("the answer claims \\boxed{1}") does not. Winners may have words around their code fence,
since nobody can guess their labels. All readers are linear in whatever a model wrote.
"""

import re
from collections.abc import Sequence

from scope_selfplay.base.values import Criterion, Outcome, Priority
from scope_selfplay.net.json import load_strict

_THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<analysis>", "</analysis>"),
    ("<reflection>", "</reflection>"),
    ("<scratchpad>", "</scratchpad>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>", "<channel|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
"""How model families mark their thinking: the text before the last end is no verdict."""
_BEGINS, _ENDS = (
    re.compile("|".join(map(re.escape, marks)), re.IGNORECASE) for marks in zip(*_THOUGHTS, strict=True)
)
_ENDS_WITH = re.compile(f"(?:{_ENDS.pattern})$", re.IGNORECASE)
LONGEST_CRITERION = 2000
"""Characters. A criterion is one sentence; a longer text is runaway output."""

_PRIORITIES = {priority.value: priority for priority in Priority} | {"nice_to_have": Priority.BONUS}
_CORRECTNESS = {"1": 1.0, "0.5": 0.5, "0": 0.0}
_MATCHES = {"correct": 1.0, "not attempted": 0.5, "incorrect": 0.0}
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_TWO_SCORES = re.compile(r"<(first|second)>([^<]*)</\1>\s*<(first|second)>([^<]*)</\3>")
# What a small model writes behind its score: `<nothing else>`, `<end>`, `</answer>`.
_ADDED = re.compile(r"</?(?!score)[a-zA-Z][a-zA-Z _]{0,30}>")
_CLOSERS = " \t\n\r.$*)\u3002"
_QUOTES = ('"', "'", "`", "\u201c", "\u2018", "\u00ab", "\u300c")
# Speech that is reported: what somebody else claims, asks for or wrote is not the judge's own verdict.
_REPORTS = re.compile(
    r"\b(?:claim|say|state|assert|demand|want|request|insist|ask|quote|read|contain|include|write|beg|order|instruct"
    r"|tell|propose|suggest|pretend|declare|announce)(?:s|ed|ing)?\b(?:\s+(?:for|that|me|us|to|its|own|a|the|itself"
    r"|judge|grader|of|output|answer|it|is|verdict|score|with|in|end|ends)){0,6}\s*:?\s*$|\b(?:said|wrote|told|written)\b"
    r"[^.!?]{0,24}$",
    re.IGNORECASE,
)
_OWN_WORDS = re.compile(r"\b(?:I|we|my|our)\b")
_SENTENCE_ENDS = re.compile(r"[.!?](?=\s|$)")
_LONGEST_LEAD = 120


def drop_thinking(completion: str) -> str | None:
    """What follows the last end of thinking, of any kind; None where thinking was begun and never ended."""
    rest = completion[_end_of_thinking(completion) :]
    return None if _BEGINS.search(rest) else rest


def thinking_of(completion: str) -> str:
    """What a judge wrote before its verdict: its thinking, or all of a completion without any."""
    thought = completion[: _end_of_thinking(completion)] or completion
    opening, closing = _BEGINS.match(thought), _ENDS_WITH.search(thought)
    start = opening.end() if opening else 0
    return thought[start : closing.start() if closing else len(thought)].strip()


def has_ended_thinking(completion: str) -> bool:
    """Whether there is an end of thinking, behind which the verdict stands."""
    return _end_of_thinking(completion) > 0


def parse_score(completion: str) -> bool | None:
    """True or False from the `<score>` that the reply begins with, which holds 1 or 0 and nothing else.

    Behind it may stand tags without words, as small models add them; nothing else may.
    """
    block, end, rest = (drop_thinking(completion) or "").strip().partition("</score>")
    score = {"1": True, "0": False}.get(_whole_block(block + end, "score") or "")
    return None if _ADDED.sub("", rest).strip() else score


def parse_rubric(completion: str, *, least: int = 3, most: int = 5) -> list[Criterion] | None:
    """`least` to `most` criteria with different texts from the JSON list in the `<rubric>` that the reply is, or from
    `criteria` of the JSON object that it is.

    An `<unmet>` may follow, which `parse_unmet` reads; where it names something, the rubric may be empty. An item has
    `text` and `priority` and may have `title` and `dimension`; other keys are not read. Weights are 1, as in the paper,
    whatever the priority.
    """
    items = _items(completion, "criteria")
    if items == [] and parse_unmet(completion):
        return []
    if not isinstance(items, list) or not least <= len(items) <= most:
        return None
    criteria = [_criterion(item) for item in items]
    known = [criterion for criterion in criteria if criterion is not None]
    return known if len({criterion.text for criterion in known}) == len(items) else None


def parse_unmet(completion: str) -> tuple[str, ...] | None:
    """What a task demands and no criterion asks for: the JSON list of texts in the `<unmet>` that ends the reply.

    None where there is no such block, since the pack does not ask for it, and where it cannot be read.
    """
    items = _items(completion, "unmet")
    if not isinstance(items, list):
        return None
    texts = [_words(item) for item in items]
    known = tuple(text for text in texts if text)
    return known if len(known) == len(items) else None


def count_criteria(completion: str) -> int | None:
    """How many items a rubric's list has, whatever they are; None without such a list."""
    items = _items(completion, "criteria")
    return len(items) if isinstance(items, list) else None


def parse_winners(completion: str, labels: Sequence[str | int], winners: int) -> list[int] | None:
    """The 0-based numbers of exactly `winners` candidates, from the object `{"winners": [...]}` that the reply, or
    the one code fence in it, is.
    """
    members = _object(_in_code_fence(drop_thinking(completion)))
    chosen = members.get("winners")
    if not isinstance(chosen, list) or len(chosen) != winners:
        return None
    if not all(isinstance(label, str | int) and not isinstance(label, bool) for label in chosen):
        return None
    places = {str(label): place for place, label in enumerate(labels)}
    found = [places.get(str(label).strip()) for label in chosen]
    numbers = [number for number in found if number is not None]
    return numbers if len(set(numbers)) == winners else None


def parse_preference(completion: str) -> Outcome | None:
    r"""(1, 0), (0, 1) or (0.5, 0.5) from the `\boxed{A}`, `\boxed{B}` or `\boxed{Tie}` that ends the reply."""
    boxed = _closing_box(drop_thinking(completion))
    if boxed is None:
        return None
    if boxed.lower() == "tie":
        return Outcome(0.5, 0.5)
    return {"A": Outcome(1.0, 0.0), "B": Outcome(0.0, 1.0)}.get(boxed)


def parse_two_scores(completion: str) -> Outcome | None:
    """The numbers from 0 to 10 in the one `<first>` and the one `<second>` that the reply is."""
    found = _TWO_SCORES.fullmatch((drop_thinking(completion) or "").strip())
    if found is None or found[1] == found[3]:
        return None
    scores = {found[1]: _decimal(found[2].strip()), found[3]: _decimal(found[4].strip())}
    first, second = scores["first"], scores["second"]
    return None if first is None or second is None else Outcome(first, second)


def parse_rating(completion: str) -> float | None:
    """The finite number from 0 to 10 in the object `{"score": x}` that the reply is; it may stand in a code fence."""
    score = _object(_unfenced((drop_thinking(completion) or "").strip())).get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 10:
        return None
    return float(score)


def parse_correctness(completion: str) -> float | None:
    r"""1, 0.5 or 0 from the `\boxed{...}` that ends the reply."""
    return _CORRECTNESS.get(_closing_box(drop_thinking(completion)) or "")


def parse_match(completion: str) -> float | None:
    r"""1 for `correct`, 0.5 for `not attempted`, 0 for `incorrect`, from the `\boxed{...}` that ends the reply."""
    boxed = _closing_box(drop_thinking(completion)) or ""
    return _MATCHES.get(" ".join(boxed.lower().replace("_", " ").split()))


def _items(completion: str, key: str) -> object:
    """`criteria` or `unmet` of a reply: of the JSON object that it is, else in the blocks that it is."""
    whole = _object(_in_code_fence(drop_thinking(completion)))
    if "criteria" in whole:
        return whole.get(key)
    # What is in the `<rubric>`, and in the `<unmet>` where one follows; the two are all of the reply.
    rubric, mark, rest = (drop_thinking(completion) or "").partition("<unmet>")
    unmet = _whole_block(mark + rest, "unmet")
    criteria = None if mark and unmet is None else _whole_block(rubric, "rubric")
    block = criteria if key == "criteria" else unmet
    return None if block is None else _json(_unfenced(block))


def _end_of_thinking(completion: str) -> int:
    return max((found.end() for found in _ENDS.finditer(completion)), default=0)


def _whole_block(text: str | None, name: str) -> str | None:
    """What is between `<name>` and `</name>`, which enclose all of the text and occur once, without white space."""
    opening, closing = f"<{name}>", f"</{name}>"
    text = (text or "").strip()
    if not text.startswith(opening) or not text.endswith(closing) or len(text) < len(opening) + len(closing):
        return None
    inside = text[len(opening) : -len(closing)]
    return None if opening in inside or closing in inside else inside.strip()


def _closing_box(text: str | None) -> str | None:
    r"""What is in the last `\boxed{...}`, where nothing but punctuation follows it and it is not quoted or reported."""
    before, boxed, rest = (text or "").rpartition("\\boxed")
    inside, closed, after = rest.removeprefix("{").partition("}")
    if not boxed or not rest.startswith("{") or not closed or after.strip(_CLOSERS):
        return None
    lead = _SENTENCE_ENDS.split(before.rpartition("\\boxed")[2][-_LONGEST_LEAD:])[-1].rstrip(" \n$*(")
    is_own = _OWN_WORDS.search(lead) is not None
    is_reported = lead.endswith(_QUOTES) or (not is_own and _REPORTS.search(lead) is not None)
    return None if is_reported else inside.strip()


def _in_code_fence(text: str | None) -> str:
    """What is in the one Markdown code fence of a text; the text where it has none."""
    parts = (text or "").split("```")
    return _unfenced(f"```{parts[1]}```") if len(parts) == 3 else (text or "").strip()


def _object(text: str) -> dict[str, object]:
    value = _json(text)
    return value if isinstance(value, dict) else {}


def _json(text: str) -> object:
    try:
        return load_strict(text)
    except ValueError:
        return None


def _unfenced(text: str) -> str:
    """Without a Markdown code fence around it, which models add to JSON unasked."""
    if not (text.startswith("```") and text.endswith("```") and "\n" in text):
        return text
    return text[text.index("\n") + 1 : -len("```")].strip()


def _criterion(item: object) -> Criterion | None:
    if not isinstance(item, dict):
        return None
    text, title, dimension = (_words(item.get(key, "")) for key in ("text", "title", "dimension"))
    priority = item.get("priority")
    known = _PRIORITIES.get(priority) if isinstance(priority, str) else None
    if not text or title is None or dimension is None or known is None:
        return None
    return Criterion(text=text, priority=known, title=title, dimension=dimension)


def _words(value: object) -> str | None:
    """A text run together on one line; None for another type or more than LONGEST_CRITERION characters."""
    if not isinstance(value, str) or len(value) > LONGEST_CRITERION:
        return None
    return " ".join(value.split())


def _decimal(text: str) -> float | None:
    """A plain decimal number from 0 to 10; no sign, no exponent, ASCII digits only."""
    if len(text) > len("10.000000") or not _DECIMAL.fullmatch(text):
        return None
    return float(text) if float(text) <= 10 else None
