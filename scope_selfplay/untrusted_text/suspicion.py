"""What in a text looks like an attack on a judge or a policy. Counted and shown, never part of a reward.

A suspicion is no proof: an answer about prompts names tags, too. What an attack could do is prevented by `cleaning`,
the fences and the strict readers; these signs say who tries, and whether a policy has begun to.
"""

import re
from enum import StrEnum

from scope_selfplay.untrusted_text.characters import INVISIBLE, plain
from scope_selfplay.untrusted_text.cleaning import FAMILIES

LONGEST = 20_000
"""Characters of a text that are looked at, half of them at its end."""


class Suspicion(StrEnum):
    """Why a text is suspect of injection."""

    TAGS = "tags"
    VERDICT = "verdict"
    ADDRESS = "address"
    INVISIBLE = "invisible"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Suspicion.TAGS: "tags of the protocol, of a chat or of a fence",
    Suspicion.VERDICT: "words of a verdict on itself",
    Suspicion.ADDRESS: "speaks to a judge or gives orders to a model",
    Suspicion.INVISIBLE: "characters that cannot be seen, where no script needs them",
}
_JUDGES = r"(?:judge|grader|evaluator|marker|reviewer|scorer|llm|ai|language model|assistant)s?"
_VERDICT = re.compile(
    r"[\"']?(?:score|winners?|verdict|rating|grade)[\"']?\s{0,3}[:=]\s{0,3}[\[\"'{]{0,2}\s{0,3}(?:10\b|1\b|[ab]\b|tie\b|pass)"
    r"|\b(?:full|maximum|top|perfect|highest)\s(?:marks?|scores?|credit|points|grade)\b"
    r"|\b(?:meets?|satisf(?:y|ies)|fulfils?)\s(?:all|every|each)(?:\sof)?(?:\sthe)?\s(?:criteri|requirement|rubric)"
    r"|\bcriteri(?:on|a)\s(?:is|are)\s(?:fully\s)?(?:met|satisfied)\b"
    r"|\b(?:score|mark|rate|grade)\s(?:this|it|me)\s(?:with\s)?(?:a\s)?(?:10|1|full"
    r"|as\s(?:a\s)?(?:correct|right|met|satisf|pass|full|perfect))",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"\b(?:dear|hey|hello|attention|(?:note|message|instructions?) (?:to|for)(?: the)?)[\s,:]{1,3}"
    rf"{_JUDGES}\b"
    r"|\b(?:ignore|disregard|forget|override)\s(?:all\s|any\s|the\s|your\s|these\s|every\s){0,2}"
    r"(?:previous|prior|above|earlier|preceding|other|system|former)\s"
    r"(?:instructions?|prompts?|rules?|text|criteria|messages?)"
    rf"|\byou are (?:now )?(?:a|an|the) (?:\w{{1,20}} ){{0,2}}{_JUDGES}\b"
    r"|\byou (?:must|should|shall|have to|will) (?:now )?"
    r"(?:award|give|score|grade|choose|select|prefer|output|reply|rate|pick)\b"
    r"|\b(?:this|my) (?:answer|response|attempt|solution) "
    r"(?:deserves|should (?:get|receive|be (?:given|scored|graded|chosen))|must (?:win|be chosen))"
    r"|\bthe other (?:answer|response|attempt|candidate)s? (?:is|are) (?:wrong|incorrect|plagiari|worse|fake)"
    r"|^\s{0,3}(?:system|judge|grader|evaluator)\s{0,2}:",
    re.IGNORECASE | re.MULTILINE,
)
_NEVER_NEEDED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u202a-\u202e\u2061-\u206f\u2800\u3164\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Web pages hold a few of these; between two ASCII letters nothing needs them.
_BETWEEN_LETTERS = re.compile(r"[A-Za-z<>/\[\]][\u200b-\u200d\u2060\ufe00-\ufe0f\ufeff]+[A-Za-z<>/\[\]]")
_MANY_INVISIBLE = 20


def suspicions(text: str) -> tuple[Suspicion, ...]:
    """The signs in a text, in the order of their names; none for an ordinary one."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n{text[-LONGEST // 2 :]}"
    folded = plain(text)
    found = []
    if _ADDRESS.search(folded):
        found.append(Suspicion.ADDRESS)
    if not text.isascii() and _hides(text):
        found.append(Suspicion.INVISIBLE)
    if any(FAMILIES.spans(folded)):
        found.append(Suspicion.TAGS)
    if _VERDICT.search(folded):
        found.append(Suspicion.VERDICT)
    return tuple(found)


def _hides(text: str) -> bool:
    if _NEVER_NEEDED.search(text) or _BETWEEN_LETTERS.search(text):
        return True
    invisible = len(INVISIBLE.findall(text))
    return invisible >= _MANY_INVISIBLE and invisible > len(text) // 10
