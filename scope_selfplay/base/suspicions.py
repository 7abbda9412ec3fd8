"""Texts that look like attacks on a judge or a model, by the shape of what they say. Never part of a reward."""

import re
from enum import StrEnum

from scope_selfplay.base.text import INVISIBLE, plain

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
    Suspicion.TAGS: "a verdict, a turn of a chat or the end of a frame in tags",
    Suspicion.VERDICT: "words of a verdict on itself",
    Suspicion.ADDRESS: "speaks to a judge or gives orders to a model",
    Suspicion.INVISIBLE: "characters that cannot be seen, where no script needs them",
}
_Signs = list[tuple[list[str], re.Pattern[str]]]


def _signs(*rows: tuple[str, str]) -> _Signs:
    return [
        (words.split("|"), re.compile(said.replace("@", f"(?:{words})"), re.MULTILINE))
        for words, said in rows
    ]


def _says(text: str, signs: _Signs) -> bool:
    return any(any(map(text.__contains__, words)) and said.search(text) for words, said in signs)


# Words of which a text must hold one, in small letters, and what it then says, with them for @: to look for words alone
# takes a fiftieth of the time. A verdict is a line of its own, or is asked for.
_VERDICT = _signs(
    (
        "score|winner|winners|verdict|rating|grade",
        r"^[\s`{]{0,3}[\"']?@[\"']?\s{0,3}[:=]\s{0,3}[\[\"'{]{0,2}\s{0,3}(?:10|1|[ab]|tie|pass)[\"'\]\s`}.]{0,5}$",
    ),
    (
        "full|maximum|top|perfect|highest",
        r"\b(?:deserves?|give|award|earns?|gets?|receives?)\s(?:\w+\s){0,3}@\s(?:marks?|scores?|credit|points|grade)\b",
    ),
    (
        "criteri|rubric",
        r"\b(?:answer|response|attempt|it)\s(?:fully\s)?(?:meets?|satisf(?:y|ies)|fulfils?)\s(?:all|every|each)(?:\sof)?"
        r"(?:\sthe)?\s@",
    ),
    (
        "criteri",
        r"\b(?:all|every|each|the)\s(?:\w{1,12}\s)?@(?:on|a)\s(?:is|are)\s(?:fully\s)?(?:met|satisfied)\b",
    ),
    (
        "score|mark|rate|grade",
        r"\b@\s(?:this|it|me)\s(?:with\s)?(?:a\s)?(?:10\b|1\b|full|as\s(?:a\s)?(?:correct|right|met|satisf|pass|full|perfect))",
    ),
    ("满分", r"给[^。\n]{0,8}@"),
    ("満点を", "@(?:与え|つけ|付け)"),
    ("балл", r"(?:высш|максимальн)\w{1,4} @"),
    ("puntuaci|nota m", r"m[aá]xima puntuaci[oó]n|nota m[aá]xima"),
    ("volle punktzahl|note maximale|الدرجة الكاملة|पूरे अंक", "@"),
)
# A verb, what came before, and what a model goes by: an order of that shape in each of a dozen languages. Then what is
# said to judges.
_ADDRESS = _signs(
    (
        "ignore|disregard|forget|override",
        r"\b@\s(?:all\s|any\s|the\s|your\s|these\s|every\s|of\s){0,3}"
        r"(?:previous|prior|above|earlier|preceding|other|system|former|your|all)\s(?:instructions?|prompts?|rules|criteria)\b",
    ),
    (
        "ignorier|vergiss|vergess|missacht|überschreib",
        r"\b@\w{0,4}\s(?:\w{1,12}\s){0,3}(?:anweisung|instruktion|vorgabe|regeln|befehle)\w{0,3}\b",
    ),
    (
        "ignore|oublie",
        r"\b@[zr]?\s(?:toutes?\s)?(?:les|vos|tes|ces)\s(?:\w{1,12}\s){0,2}(?:instructions|consignes|règles)",
    ),
    (
        "ignor|olvid",
        r"\b@[ae]d?\s(?:todas?\s)?(?:las|tus|sus|estas)\s(?:\w{1,12}\s){0,2}(?:instrucciones|reglas|órdenes)",
    ),
    (
        "ignore|ignora|esqueça|esquece",
        r"\b@\s(?:todas?\s)?(?:as|suas|tuas|essas)\s(?:\w{1,12}\s){0,2}(?:instruções|regras|ordens)",
    ),
    (
        "ignora|ignorate|ignori|dimentica",
        r"\b@\s(?:tutte\s)?(?:le|tue|queste)\s(?:\w{1,12}\s){0,2}(?:istruzioni|regole)",
    ),
    (
        "игнорируй|игнорируйте|забудь|забудьте",
        r"\b(?:про)?@\s(?:\w{1,14}\s){0,3}(?:инструкци|указани|правил)\w{1,3}",
    ),
    (
        "忽略|无视|忘记|忘掉|忽視|無視|忘記",
        r"@[^。,\n]{0,4}(?:之前|以前|以上|上述|先前|前面|所有|一切|全部)[^。,\n]{0,8}(?:指令|指示|命令|提示)",
    ),
    (
        "無視|忘れ",
        r"(?:これまで|以前|以上|上記|前|すべて|全て|全)[^。、\n]{0,6}(?:指示|命令|指令)[^。、\n]{0,6}@",
    ),
    ("무시|잊", r"(?:이전|위의|모든|앞선)[^.\n]{0,8}(?:지시|명령|지침)[^.\n]{0,5}@"),
    ("تجاهل|انس|أهمل", r"@\w{0,2}\s(?:\w{1,8}\s){0,2}(?:ال)?(?:تعليمات|أوامر|توجيهات)"),
    ("अनदेखा|नज़रअंदाज़|भूल", r"(?:सभी|पिछले|पूर्व|उपरोक्त)[^।\n]{0,12}(?:निर्देश|आदेश)\S{0,4}[^।\n]{0,6}@"),
    (
        "dear|hey|hello|attention|note to|note for|message to|message for|"
        "instruction to|instruction for|instructions to|instructions for",
        r"\b@(?: the)?[\s,:]{1,3}"
        r"(?:judge|grader|evaluator|marker|reviewer|scorer|llm|ai|language model|assistant)s?\b(?=\s{0,2}[,:.!])",
    ),
    ("you are", r"\b@ (?:now )?(?:a|an|the) (?:\w{1,20} ){0,2}(?:judge|grader|evaluator|marker|scorer)s?\b"),
    (
        "you must|you should|you shall|you have to|you will",
        r"\b@ (?:now )?(?:(?:award|score|grade|rate)\b|(?:give|choose|select|prefer|pick|output|reply)\s(?:with\s)?"
        r"(?:(?:this|me|my)\s|(?:a\s)?(?:10|1|full|score|top)\b"
        r"|the (?:first|second|best|highest) (?:answer|score|mark)))",
    ),
    (
        "answer|response|attempt|solution",
        r"\b(?:this|my) @ (?:deserves|should (?:get|receive|be (?:given|scored|graded|chosen))|must (?:win|be chosen))",
    ),
    (
        "the other",
        r"\b@ (?:answer|response|attempt|candidate)s? (?:is|are) (?:wrong|incorrect|plagiari|worse|fake)",
    ),
    (
        "system|judge|grader|evaluator",
        r"^\s{0,3}@\s{0,2}:\s{0,3}(?:you|ignore|give|grade|score|the|this|award)\b",
    ),
)
# What a policy, a judge or a chat would write next: a verdict in its tags, a turn, the end of a frame.
_TURNS = re.compile(
    r"<(?:score|first|second|verdict|winners?)\s{0,3}>\s{0,3}(?:10|[01](?:\.\d)?|[ab])\s{0,3}</|\\boxed\{(?:1|[ab])\}\s*\Z"
    r"|</(?:answer|response|document|think|information|tool_response)\s{0,3}>\s{0,9}<(?:score|answer|task|search|think|\|)"
    r"|<[|\uff5c](?:im_start|start|start_header_id|turn)[|\uff5c]?>\s{0,3}(?:system|user|assistant|model)"
    r"|<[|\uff5c](?:im_end|eot_id|end)[|\uff5c]>\s{0,3}<[|\uff5c]|\[INST\][^\[]{1,4000}\[/INST\]|<<SYS>>|\[\|system\|\]"
    r"|<{3}\w{1,40} \w{4,40}>{3}",
    re.IGNORECASE,
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
    # A Turkish i is one.
    small = folded.casefold() if text.isascii() else folded.casefold().translate({0x131: "i", 0x307: None})
    found = []
    if _says(small, _ADDRESS):
        found.append(Suspicion.ADDRESS)
    if not text.isascii() and _hides(text):
        found.append(Suspicion.INVISIBLE)
    if ("<" in folded or "[" in folded or "\\" in folded) and _TURNS.search(folded):
        found.append(Suspicion.TAGS)
    if _says(small, _VERDICT):
        found.append(Suspicion.VERDICT)
    return tuple(found)


def _hides(text: str) -> bool:
    if _NEVER_NEEDED.search(text) or _BETWEEN_LETTERS.search(text):
        return True
    return _MANY_INVISIBLE <= len(INVISIBLE.findall(text)) > len(text) // 10
