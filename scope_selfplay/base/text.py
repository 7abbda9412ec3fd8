"""What others wrote, for a prompt: in a frame where it could be taken for the prompt's own words, and as it is.

A policy's prompt is encoded here, so that its control tokens never come from a text (`inference.codec`) and a text need
not be changed. A judge's is encoded by its server: there the control tokens of its model are written otherwise, those
of its tokenizer's list where that is known, else all that have the shapes of the families'.
"""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import count, groupby, pairwise
from typing import Any

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
INVISIBLE = re.compile(f"[{_INVISIBLE}]")
"""Unicode's default-ignorable characters, and those that are drawn as nothing."""

JOINERS = "\u200c\u200d"
"""Scripts and emoji need them."""
_LINE_BREAKS = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
_ASCII_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# What could be a control or a format: a quick look before `_Kept` decides. Joiners are among them.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


class _Kept(dict[int, str | None]):
    """Code point -> what of it a prompt shows: itself, a line break, or nothing."""

    def __missing__(self, point: int) -> str | None:
        character = chr(point)
        kept: str | None = character
        if character in _LINE_BREAKS:
            kept = "\n"
        elif character not in "\t\n" and character not in JOINERS:
            hidden = 0xE0000 <= point <= 0xE0FFF or unicodedata.category(character) in ("Cc", "Cf")
            kept = None if hidden else character
        self[point] = kept
        return kept


class _Plain(dict[int, str]):
    """Code point -> its plain form (NFKC), by itself: empty for an invisible one, a space for white space.

    Normalising a whole text would reorder runs of combining marks, in quadratic time on a hostile one; a form that
    folds to ASCII never depends on its neighbours.
    """

    def __missing__(self, point: int) -> str:
        character = chr(point)
        if INVISIBLE.match(character):
            plain = ""
        elif unicodedata.category(character) == "Zs":
            plain = " "
        else:
            plain = INVISIBLE.sub("", unicodedata.normalize("NFKC", character))
        self[point] = plain
        return plain


_KEPT, _PLAIN = _Kept(), _Plain()
# To look up every character of an English text for a few quotation marks takes three times as long.
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f][^\x21-\x7f]*")


def trimmed(text: str) -> str:
    """Without blank lines in front and blanks at the end; what indents its first line may be code."""
    return re.sub(r"\A\s*\n", "", text).rstrip()


def encodable(text: str) -> str:
    """Pairs of surrogates joined, half ones replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def plain(text: str) -> str:
    """The text as its letters read, whatever forms they were written in."""
    return text if text.isascii() else _BEYOND_ASCII.sub(lambda run: run[0].translate(_PLAIN), text)


_INDIC = (*range(0x0900, 0x10A0), *range(0x1780, 0x1800))
SIGNS = "".join(chr(point) for point in _INDIC if unicodedata.category(chr(point)).startswith("M"))
"""Vowel signs and the like, from India to Cambodia, which `\\w` does not count among the letters."""
# Thai, Lao, Burmese, Khmer, kana and Chinese characters, but no digits; and the marks of the last two.
_UNSPACED_LETTER = (
    "[\u0e01-\u0e4e\u0e80-\u0ecf\u0eda-\u0eff\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7-\u17df\u3005-\u3007"
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    f"\U00020000-\U0003ffff][{SIGNS}\u3099\u309a]*+"
)
_MARK = "[\u3001-\u3004\u3008-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]"
_LETTER, _UNSPACED = re.compile(_UNSPACED_LETTER), re.compile(f"(?:{_UNSPACED_LETTER})+|{_MARK}")


def spaced(text: str, length: int = 1) -> str:
    """The text with blanks around its words, for all that counts or compares words: in scripts that write none, each
    `length` letters that follow each other are one.

    No dictionary: an index is made and searched on many machines, and with ICU's words more Japanese titles are
    found, and fewer Thai and Burmese ones.
    """

    def words(run: re.Match[str]) -> str:
        letters = _LETTER.findall(run[0]) or [run[0]]
        starts = range(max(1, len(letters) - length + 1))
        return f" {' '.join(''.join(letters[start : start + length]) for start in starts)} "

    return text if text.isascii() else _BEYOND_ASCII.sub(lambda run: _UNSPACED.sub(words, run[0]), text)


def is_blank(text: str) -> bool:
    """Whether a text says nothing: no letter, digit or symbol among white space, punctuation and the invisible."""
    # An emoji, an arrow or infinity may be an answer; a backtick or a bar is none.
    return not any(
        each.isalnum() or (unicodedata.category(each) in ("Sm", "So", "Sc") and each not in "|~")
        for each in plain(text)
    )


_PROTOCOL = (
    "think|thinking|thought|reasoning|score|rubric|response|prompt|first|second|answer|task|document|documents|criterion"
    "|candidate|question|search|information|tool_call|tool_response|tools|function_calls|functions|function|parameter"
    "|invoke|arg_key|arg_value|winners|verdict|system|user|assistant|role"
)
# Of these names some families make tokens, for tags that are written just so.
_NAMED = "think|tool_call|tool_response|tools|functions|function_calls|arg_key|arg_value"
_CHAT = (
    "s|bos|eos|pad|unk|mask|cls|sep|sop|eop|escape|start_of_turn|end_of_turn|start_of_image|end_of_image"
    "|image_soft_token|audio_soft_token|start_function_\\w+|end_function_\\w+|code_interpreter|toolcall"
)
_CODE = (
    "fim_\\w+|repo_name|reponame|filename|file_sep|gh_stars|issue_\\w+|jupyter_\\w+|empty_output|commit_\\w+"
    "|pr_\\w+|intermediate_to_\\w+|endoftext|pii|unused_?\\d+|extra_id_\\d+|special_\\d+|mask_\\d+|reserved_\\w+"
    "|\\w+_token"
)
# `<|...`, `<name|>` of Gemma, `<seed:...>`, `<mask:0>` and the like.
_SHAPED = r"[|\uff5c]|\[?[\w.-]{1,64}+[|\uff5c]>|(?:seed|minimax|mask|longcat|\[?plhd|\[bos)[:_]"
_BRACKETED = (
    r"/?(?:INST|SYS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|AVAILABLE_TOOLS|SYSTEM_PROMPT|MODEL_SETTINGS|THINK|ARGS"
    r"|CALL_ID|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|CLS|SEP|PAD|UNK|BOS|EOS|EOT|[gs]?MASK"
    r"|start_header_id|end_header_id)\]|\|(?:system|user|assistant|tool|endofturn)\||e~\[|@BOS@\]"
)
# `<` before a token, an optional slash and a few spaces included; a letter behind it may be mathematics, so that short
# names must be whole tags. `[` before a bracketed one.
_TOKENS = (
    rf"<(?=\s{{0,3}}+/?+\s{{0,3}}+(?:(?:{_NAMED}|{_CHAT}|{_CODE})\s{{0,3}}+/?+>|{_SHAPED}))"
    rf"|(?-i:\[(?=\s{{0,3}}+(?:{_BRACKETED})))|\](?=~!?b[\[\]])|>>(?=[A-Z]{{4,12}}<<)"
)
# What nobody but us writes: the mark of a frame, the note of a cut.
_MARKS = r"<{3}(?=\w{1,40} \w{1,40}>{3})|\[(?=cut here:)"
_OURS = rf"<(?=\s{{0,3}}+/?+\s{{0,3}}+(?:{_PROTOCOL})\b)|<{{3,}}|>{{3,}}"
_FORMS = "<>\\[\\]\ufe64\ufe65\uff1c\uff1e\uff3b\uff3d\ufe47\ufe48"
HARMLESS = {"<": "\u2039", ">": "\u203a", "[": "\u27e6", "]": "\u27e7", "{": "\u2774", "|": "\u00a6"}
"""What takes the place of a character that began a tag."""
_LONGEST, _MOST = 128, 2_000


class ControlTags:
    """What is no ordinary text: the control tokens of one tokenizer, or of all families where `tokens` are not known.

    `ours`: all of them, and the tags of the protocol.
    """

    def __init__(self, tokens: Iterable[str] = (), *, ours: bool = False) -> None:
        folded = {plain(token).strip() for token in tokens}
        # A bare word is no control token.
        own = [each for each in folded if 1 < len(each) <= _LONGEST and not each.replace("_", "").isalnum()]
        self.tokens = tuple(sorted(own)[:_MOST])
        shapes = [] if 0 < len(own) <= _MOST and not ours else [_TOKENS]
        self.pattern = _compiled(self.tokens, (_MARKS, *shapes, *([_OURS] if ours else [])))
        # Every form of a first character; those of `<`, `>`, `[`, `]` are known, others are looked for in all forms.
        rare = any(not token.startswith(("<", "[", "]", ">")) for token in self.tokens)
        self.forms = re.compile("." if rare else f"[{_FORMS}]", re.DOTALL)
        self.openers = re.compile(
            "[" + re.escape("".join({"<", ">", "[", "]"} | {each[0] for each in self.tokens})) + "]"
        )

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where tags begin in a text in its plain form: the characters to be replaced."""
        # Most openers begin nothing: to look at them alone is quicker than the pattern over the whole text.
        opener = self.openers.search(text)
        while opener is not None:
            found = self.pattern.match(text, opener.start())
            if found is not None:
                yield found.span()
            opener = self.openers.search(text, opener.end() if found is None else found.end())

    def harmless(self, character: str) -> str:
        """What stands for a character at a tag's beginning; one without a look-alike is followed by a space."""
        return HARMLESS.get(plain(character), f"{character} ")


@lru_cache(maxsize=16)
def _compiled(tokens: tuple[str, ...], shapes: tuple[str, ...]) -> re.Pattern[str]:
    by_first = groupby(tokens, key=lambda token: token[0])
    exact = (
        rf"{re.escape(first)}(?={'|'.join(re.escape(each[1:]) for each in group)})"
        for first, group in by_first
    )
    return re.compile("|".join([*shapes, *exact]), re.IGNORECASE | re.ASCII)


FAMILIES = ControlTags()
"""The control tokens of all model families; a judge's own list comes from its tokenizer."""
TAGS = ControlTags(ours=True)
"""What could be taken for the words of a policy's prompt."""
_MARKUP = "#*>_-=~`|+ \t"
_LONGEST_HEAD = 120
_NUMBERED = re.compile(r"\[ ?[0-9]{1,4} ?\]")


def clean(text: str, tags: ControlTags = FAMILIES) -> str:
    """A text that a judge's prompt can show: encodable, without controls or bidi, without `tags`.

    Tags are looked for in the text's plain form (`plain`), and only the character that begins one is replaced: an
    ordinary `x²` stays what it is. Homoglyphs of other scripts are no tags and stay.
    """
    text = shown(text)
    # A quick look before the slow one: most texts hold no character that could begin a tag, in whatever form.
    folded = plain(text) if tags.forms.search(text) else ""
    spans = list(tags.spans(folded))
    if not spans:
        return text
    # For every character of the plain form, where in the text it comes from.
    places = [place for place, each in enumerate(text) for _ in _PLAIN[ord(each)]]
    characters = list(text)
    for start, end in spans:
        for place in range(start, end):
            characters[places[place]] = tags.harmless(folded[place])
    return "".join(characters)


def clean_line(text: str) -> str:
    """A text without any tags on one line, such as the description of a tool."""
    return " ".join(clean(text, TAGS).split())


def shown(text: str) -> str:
    """The text as a prompt can show it, word for word: encodable, without controls, bidi marks or invisible formats;
    every kind of line break is a line feed; joiners stay.
    """
    text = text if text.isascii() else encodable(text)
    has_controls = (_ASCII_CONTROLS if text.isascii() else _CONTROLS).search(text)
    return text.replace("\r\n", "\n").translate(_KEPT) if has_controls else text


_OPEN, _CLOSE = "<<<quoted {}>>>\n", "\n<<<end {}>>>"
FRAMED = re.compile(_OPEN.format("([0-9a-f]{12})") + ".*?" + _CLOSE.format(r"\1"), re.DOTALL)
"""A frame in a policy's prompt, with what is in it."""


def framed(text: str, own_lines: Callable[[str], bool] | None = None) -> str:
    """What others wrote, as a policy reads it: word for word, in a frame where it could be mistaken for the prompt.

    That is where it holds a tag of the protocol or of a chat, in whatever letters, or one of the prompt's `own_lines`:
    those are given in their plain form without case. The frame's mark does not occur in the text.
    """
    text = shown(text)
    if not in_need_of_frame(text, own_lines):
        return text
    digests = (hashlib.blake2b(f"{n}\x1f{text}".encode(), digest_size=6).hexdigest() for n in count())
    mark = next(digest for digest in digests if digest not in plain(text))
    return _OPEN.format(mark) + text + _CLOSE.format(mark)


def frame_tokens(
    count_tokens: Callable[[str], int], text: str, own_lines: Callable[[str], bool] | None = None
) -> int:
    """The most tokens that a frame adds to this text; 0 where it needs none."""
    if not in_need_of_frame(text, own_lines):
        return 0
    # A mark has 12 digits, each of which is a token at most, and every seam may take one more.
    return count_tokens(_OPEN.format("")) + count_tokens(_CLOSE.format("")) + 2 * 12 + 6


def by_frame(prompt: str) -> Iterator[tuple[bool, str]]:
    """The parts of a policy's prompt in order, and whether each is a frame."""
    end = 0
    for found in FRAMED.finditer(prompt):
        yield from ((False, prompt[end : found.start()]), (True, found[0]))
        end = found.end()
    yield False, prompt[end:]


def in_need_of_frame(text: str, own_lines: Callable[[str], bool] | None = None) -> bool:
    folded = plain(text)
    if TAGS.openers.search(folded) and any(TAGS.spans(folded)):
        return True
    return own_lines is not None and any(own_lines(line.strip().casefold()) for line in folded.split("\n"))


def numbers_a_result(line: str) -> bool:
    """Whether a line begins as search results are numbered: `[2] Title: ...`."""
    return _NUMBERED.match(line) is not None


@lru_cache(maxsize=256)
def frame_of(template: str) -> Callable[[str], bool]:
    """Whether a line reads as a heading (`## Searching`) or as a label (`Question:`) of this template does, in whatever
    spacing, marks and emphasis it is written.
    """
    folded = [plain(re.split(r"\{[{%]", line)[0]).strip().casefold() for line in template.split("\n")]
    headings = tuple({words for head in folded if head.startswith("#") and (words := _words(head))})
    labels = tuple({f"{words}:" for head in folded if head.endswith(":") and (words := _words(head))})
    firsts = tuple({each.rstrip(":").split()[0] for each in headings + labels})

    def is_of_the_frame(line: str) -> bool:
        if not any(first in line for first in firsts):
            return False
        bare = line.lstrip(_MARKUP)
        words = _words(bare[:_LONGEST_HEAD])
        label, colon, _ = bare[:_LONGEST_HEAD].partition(":")
        is_heading = words in headings or (bare != line and words.startswith(headings))
        return is_heading or f"{_words(label)}{colon}" in labels

    return is_of_the_frame


def _words(text: str) -> str:
    return " ".join("".join(each if each.isalnum() else " " for each in text).split())


def printable(text: str) -> str:
    """The text with every character that a terminal might obey, or that nobody can see, shown as its code.

    Controls, marks that reverse the direction, private and unassigned characters; line ends, tabs and the
    blanks of all scripts stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t" or unicodedata.category(letter) == "Zs"
        else f"\\x{ord(letter):02x}"
        for letter in text
    )


def one_line(text: str) -> str:
    """As `printable`, with line ends and runs of blanks as one blank: a cell of a line-by-line listing."""
    return printable(" ".join(text.split()))


def letters_of(text: str) -> str:
    """Letters and digits alone, in one form: small, without accents, of one width, ASCII's digits."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(str(unicodedata.decimal(letter, letter)) for letter in folded if letter.isalnum())


def named_in(text: str) -> set[str]:
    """Its names and numbers, in small letters: words with a digit, or with a capital that begins no sentence."""
    found: set[str] = set()
    for before, word in pairwise(spaced(text).split()):
        if (word[:1].isupper() and before[-1:] not in ".:") or any(letter.isdigit() for letter in word):
            found.add(_bare(word))
    return found - {""}


_TITLE_WORD = 4
"""Letters of a word that tells what a title without names is about."""


def names_of(title: str) -> set[str]:
    """What a title, up to a colon, is about: its names, else its longer words, else all of them."""
    words = re.split("[:：]", title)[0].split()
    names = {name for name in named_in(f". {title}") if any(map(str.isalpha, name))}
    return names or {word for word in words if len(letters_of(word)) >= _TITLE_WORD} or {*words}


def stem_of(letters: str) -> str:
    """A longer name without the last vowel, which in Slavic languages is another one in each case."""
    return letters[:-1] if len(letters) > _TITLE_WORD and letters[-1] in "aeiouyаеиоуыэюя" else letters


def opening(text: str) -> str:
    """Its first four words that are neither names nor numbers, in small letters: how a kind of task begins."""
    return " ".join(_common_words(text)[:4])


def form_of(text: str) -> frozenset[str]:
    """Its words and pairs of words that are neither names nor numbers, in small letters: what kind of task it is."""
    words = _common_words(text)
    return frozenset([*words, *map(" ".join, pairwise(words))])


def _common_words(text: str) -> list[str]:
    # In German every noun has a capital, and none is told from a name. By the words: what is asked has no language.
    german = re.findall(r"\b(?:wer|wie|wo|der|das|dem|des|ist|und|von|welche[nmrs]?)\b", text.lower())
    names = {name for name in named_in(text) if len({*german}) < 2 or not name.isalpha()}
    return [word for word in map(_bare, spaced(text).split()) if word and word not in names]


def words_of(texts: Iterable[str]) -> set[str]:
    """In small letters, without the marks around them."""
    return {_bare(word) for text in texts for word in spaced(text).split()}


def _bare(word: str) -> str:
    return word.strip(".,;:!?()[]\"'").lower()


_LOOKED_AT, _SURE = 500, 0.7
# Pages, and the share of all, from which on a paragraph is no content.
_REPEATED, _REPEATED_SHARE = 5, 0.1


def language_in(text: str) -> str:
    """Its code, such as `de`, where py3langid is there and sure of it; else ""."""
    try:
        code, confidence = _identifier().classify(text[:_LOOKED_AT])
    except ImportError:
        return ""
    return code if confidence >= _SURE else ""


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def without_repeated(texts: Sequence[tuple[str, str]]) -> list[str]:
    """Of pages and what they say, this without the paragraphs at its ends that many pages have: menus, footers,
    signatures. What a heading stands above is said of that page, whoever says the same.
    """
    pages: defaultdict[str, set[str]] = defaultdict(set)
    split = [re.split(r"\n\s*\n", text) for _, text in texts]
    for (page, _), parts in zip(texts, split, strict=True):
        for each in parts:
            pages[each.strip()].add(page)
    most = max(_REPEATED, _REPEATED_SHARE * len({page for page, _ in texts}))
    found = list[str]()
    for (_, text), parts in zip(texts, split, strict=True):
        own = [
            place
            for place, (before, each) in enumerate(zip(("", *parts), parts, strict=False))
            if len(pages[each.strip()]) < most or each.startswith("#") or before.startswith("#")
        ]
        kept = "\n\n".join(parts[own[0] : own[-1] + 1]) if own else ""
        found.append(text if "```" in text or len(own) == len(parts) else trimmed(kept))
    return found
