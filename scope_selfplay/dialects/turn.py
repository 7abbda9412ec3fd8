"""What a dialect is: how one model family writes a turn, and what we read in it, in one pass whatever it holds.

Blocks are found with `str.find`, `str.count`, `str.split` and friends only: no regular expressions and no loop that
starts again. Tags are exact ASCII; look-alikes are text. Where a reading would be a guess, the block does not count.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

EXAMPLE_QUERY = "your search query"
TASK_TAGS = ("<task>", "</task>")
ANSWER_TAGS = ("<answer>", "</answer>")
THINK_TAGS = THINK_OPEN, THINK_CLOSE = ("<think>", "</think>")
# More tries, and longer calls, than any sensible turn needs; they bound the cost of 1 MiB of broken calls.
MAX_CALLS = 16
MAX_CALL_LENGTH = 16_384


@dataclass(frozen=True)
class TurnParts:
    """The contents of one assistant turn. A part that is absent, blank, unclosed, nested or ambiguous is None.

    Only thinking may be blank: a closed block counts as thinking whatever it holds (SCOPE appendix F).
    """

    thinking: str | None
    query: str | None
    task: str | None
    answer: str | None


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One model family's way to search and think (SCOPE Table 11); tasks and answers look alike in all.

    `read_query` gets the stripped text between the search tags and returns the query or None; `write_query`
    is its inverse and returns the text between the tags, whitespace included.
    """

    name: str
    search_tags: tuple[str, str]
    read_query: Callable[[str], str | None]
    write_query: Callable[[str], str]
    result_tags: tuple[str, str] | None
    """What encloses the passages; None where the chat role alone marks them."""
    tool_role: str
    """The chat role whose message `tool_response` is."""
    stop: tuple[str, ...]
    """Where sampling ends; an engine must keep the stop text, else the turn is unclosed."""
    template_opens_thinking: bool
    """Whether a chat template of this family may end the prompt with an open think tag."""
    native_thinking: bool
    """Whether the family thinks without being told to, so that a prompt brings no think tags of its own."""
    drops_earlier_thinking: bool
    """Whether the family's template removes the thinking of earlier turns from the next prompt."""

    @property
    def search_syntax(self) -> str:
        """The example of a search call that a prompt shows."""
        return self.search_call(EXAMPLE_QUERY)

    def parse(self, text: str) -> TurnParts:
        """Read one assistant turn without its end-of-turn token. Linear in its length; never raises.

        Tags inside thinking do not count. The first valid search call is the query; two answers, or two
        tasks, are none. A block that holds another tag of the protocol is none either. An inner
        `<question>` of a task is the task. Halves of surrogate pairs become question marks. When the prompt
        ended inside thinking and this turn may have stopped there, parse the think tag with it:
        `parse("<think>" + text)`.
        """
        text = text.encode("utf-8", "replace").decode()
        thinking, body = _split_thinking(text, may_begin_inside=self.template_opens_thinking)
        task = _only_block(body, "task", (THINK_CLOSE, *ANSWER_TAGS, *self.search_tags))
        if task is not None and ("<question>" in task or "</question>" in task):
            task = _only_block(task, "question", ())
        foreign = (THINK_CLOSE, *TASK_TAGS, *ANSWER_TAGS)
        queries = map(self.read_query, _call_blocks(body, *self.search_tags, foreign))
        return TurnParts(
            thinking=thinking,
            query=next((query for query in queries if query is not None), None),
            task=task,
            answer=_only_block(body, "answer", (THINK_CLOSE, *TASK_TAGS, *self.search_tags)),
        )

    def search_call(self, query: str) -> str:
        """The call that `parse` reads back as exactly this query.

        Raises ValueError for a query that no call can carry: blank, with whitespace around it, longer than
        about 16,000 characters, with half a surrogate pair, or with a tag that the family cannot escape.
        """
        opener, closer = self.search_tags
        call = f"{opener}{self.write_query(query)}{closer}"
        if self.parse(call) != TurnParts(thinking=None, query=query, task=None, answer=None):
            raise ValueError(f"the {self.name} dialect cannot write a search for {query[:80]!r}")
        return call

    def tool_response(self, passages_text: str) -> str:
        """The message, for the role `tool_role`, that brings search results back to the model.

        The enclosing tags are broken up where a passage brings its own, so that no passage can end the block.
        """
        if self.result_tags is None:
            return passages_text
        opener, closer = self.result_tags
        for tag in self.result_tags:
            passages_text = passages_text.replace(tag, tag.replace("<", "< "))
        return f"{opener}\n{passages_text}\n{closer}"


def valid_query(query: object) -> str | None:
    """A query as every family takes it: text, without the whitespace around it, not blank."""
    return _own_text(query, ()) if isinstance(query, str) else None


def _split_thinking(text: str, *, may_begin_inside: bool) -> tuple[str | None, str]:
    """The closed block of thinking that opens a turn, if there is one, and the text outside of all thinking.

    Only whitespace may precede it. With `may_begin_inside` a turn whose first think tag is a closing one
    began inside thinking, because the chat template had already opened it. Later think blocks are thinking
    too and belong to neither part; a line break takes their place, so that no new tag forms in their
    place. From an opener that is never closed on, everything is thinking.
    """
    start = text.lstrip()
    if start.startswith(THINK_OPEN):
        thinking, closer, rest = start[len(THINK_OPEN) :].partition(THINK_CLOSE)
        return (thinking.strip(), _outside(rest)) if closer else (None, "")
    before, closer, rest = text.partition(THINK_CLOSE)
    if may_begin_inside and closer and THINK_OPEN not in before:
        return before.strip(), _outside(rest)
    return None, _outside(text)


def _only_block(text: str, name: str, foreign: Sequence[str]) -> str | None:
    """The text of the one `<name>` block, stripped.

    None unless the opening and the closing tag occur exactly once each, in this order, with something other
    than whitespace and none of the `foreign` tags between them.
    """
    opener, closer = f"<{name}>", f"</{name}>"
    if text.count(opener) != 1 or text.count(closer) != 1:
        return None
    _, _, rest = text.partition(opener)
    content, found, _ = rest.partition(closer)
    return _own_text(content, foreign) if found else None


def _call_blocks(text: str, opener: str, closer: str, foreign: Sequence[str]) -> Iterator[str]:
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
        content = _own_text(text[start + len(opener) : end], (opener, *foreign))
        if content is not None and len(content) <= MAX_CALL_LENGTH:
            yield content
        position = end + len(closer)


def _own_text(content: str, foreign: Sequence[str]) -> str | None:
    """The content without surrounding whitespace; None when nothing is left or it holds a foreign tag."""
    content = content.strip()
    return None if not content or any(tag in content for tag in foreign) else content


def _outside(text: str) -> str:
    first, *openings = text.split(THINK_OPEN)
    return "\n".join([first, *(opening.partition(THINK_CLOSE)[2] for opening in openings)])
