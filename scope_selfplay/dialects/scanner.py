"""Finds tagged blocks in text that a model wrote, in one pass over it whatever it holds.

Only `str.find`, `str.count`, `str.split` and friends: no regular expressions and no loop that starts again.
Tags are exact ASCII; look-alikes are text. Where a reading would be a guess, the block does not count.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

# More tries, or longer calls, than any turn in earnest needs; they keep the price of 1 MiB of broken calls
# small.
MAX_CALLS = 16
MAX_CALL_LENGTH = 16_384


class Split(NamedTuple):
    """A turn taken apart: its opening thinking, if that is closed, and everything outside of all thinking."""

    thinking: str | None
    body: str


def split_thinking(text: str, *, may_begin_inside: bool) -> Split:
    """Separates the closed block of thinking that opens a turn from what is said aloud.

    Only whitespace may stand before it. With `may_begin_inside` a turn whose first think tag is a closing one
    began inside thinking, because the chat template had already opened it. Later think blocks are thinking
    too and belong to neither part; a line break takes their place, so that no new tag forms where they
    stood. From an opener that is never closed on, everything is thinking.
    """
    start = text.lstrip()
    if start.startswith(THINK_OPEN):
        thinking, closer, rest = start[len(THINK_OPEN) :].partition(THINK_CLOSE)
        return Split(thinking.strip(), _outside(rest)) if closer else Split(None, "")
    before, closer, rest = text.partition(THINK_CLOSE)
    if may_begin_inside and closer and THINK_OPEN not in before:
        return Split(before.strip(), _outside(rest))
    return Split(None, _outside(text))


def only_block(text: str, name: str, foreign: Sequence[str]) -> str | None:
    """The text of the one `<name>` block, stripped.

    None unless the opening and the closing tag stand exactly once each, in this order, with something other
    than whitespace and none of the `foreign` tags between them.
    """
    opener, closer = f"<{name}>", f"</{name}>"
    if text.count(opener) != 1 or text.count(closer) != 1:
        return None
    _, _, rest = text.partition(opener)
    content, found, _ = rest.partition(closer)
    return own_text(content, foreign) if found else None


def call_blocks(text: str, opener: str, closer: str, foreign: Sequence[str]) -> Iterator[str]:
    """The texts of the blocks between `opener` and `closer`, in order, stripped.

    A block that is blank, longer than 16,384 characters, or holds a tag, its own opener included, is passed
    over. At most 16 blocks are looked at.
    """
    position = 0
    for _ in range(MAX_CALLS):
        start = text.find(opener, position)
        end = text.find(closer, start + len(opener)) if start >= 0 else -1
        if end < 0:
            return
        content = own_text(text[start + len(opener) : end], (opener, *foreign))
        if content is not None and len(content) <= MAX_CALL_LENGTH:
            yield content
        position = end + len(closer)


def own_text(content: str, foreign: Sequence[str]) -> str | None:
    """The content without surrounding whitespace; None when nothing is left or a foreign tag stands in it."""
    content = content.strip()
    return None if not content or any(tag in content for tag in foreign) else content


def encodable(text: str) -> str:
    """The text with a question mark for every half of a surrogate pair: it can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _outside(text: str) -> str:
    first, *openings = text.split(THINK_OPEN)
    return "\n".join([first, *(opening.partition(THINK_CLOSE)[2] for opening in openings)])
