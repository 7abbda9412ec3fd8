"""The model families: how each of them writes a search call and its thinking.

To add one, write its `Dialect`, list it in `DIALECTS`, and allow its name in `ModelConfig.dialect`
(`scope_selfplay/config/run.py`).

Qwen2.5: a search is a tag of its own, results come back in a user message between information tags. The family
has native tool calls; the paper does not use them for it, because this is the form that its instruction-tuned
models keep best (SCOPE appendix E). A query cannot hold a tag of the protocol.

Qwen3: a search is a native tool call, a JSON object between tool_call tags; thinking is native. The template
writes tool results into a user message, so that is the role here: a `tool` message whose content the template
encloses and our enclosed `user` message give the same prompt. Only the call is a stop text: a closing task or
answer tag that the model weighs in its thinking must not end the turn.

OLMo-3: a search is a function call with a JSON value, results come back in the role `environment`. Several calls of
one block are on lines of their own. The Instruct models do not think natively; the template of the Think models
opens the thinking in the prompt.
"""

import json
from contextlib import suppress

from scope_selfplay.dialects.turn import MAX_CALLS, Dialect, valid_query
from scope_selfplay.wire.strict_json import load_strict

QWEN25 = Dialect(
    name="qwen2.5",
    search_tags=("<search>", "</search>"),
    read_query=valid_query,
    write_query=str,
    result_tags=("<information>", "</information>"),
    tool_role="user",
    stop=("</search>", "</task>", "</answer>"),
    template_opens_thinking=False,
    native_thinking=False,
    drops_earlier_thinking=False,
)


def _read_tool_call(content: str) -> str | None:
    try:
        call = load_strict(content)
    except ValueError:
        return None
    match call:
        case {"name": "search", "arguments": {"query": query, **others}, **rest} if not others and not rest:
            return valid_query(query)
    return None


def _json_without_tags(query: str) -> str:
    """The escape of "<" keeps tags and special tokens of the model out of the text; JSON reads it back."""
    return json.dumps(query, ensure_ascii=False).replace("<", "\\u003c")


QWEN3 = Dialect(
    name="qwen3",
    search_tags=("<tool_call>", "</tool_call>"),
    read_query=_read_tool_call,
    write_query=lambda query: (
        f'\n{{"name": "search", "arguments": {{"query": {_json_without_tags(query)}}}}}\n'
    ),
    result_tags=("<tool_response>", "</tool_response>"),
    tool_role="user",
    stop=("</tool_call>",),
    template_opens_thinking=True,
    native_thinking=True,
    drops_earlier_thinking=True,
)


def _read_first_function_call(content: str) -> str | None:
    for line in map(str.strip, content.split("\n", MAX_CALLS)):
        name, equals, value = line.removeprefix("search(").removesuffix(")").partition("=")
        if line.startswith("search(") and line.endswith(")") and name.strip() == "query" and equals:
            with suppress(ValueError):
                if (query := valid_query(load_strict(value))) is not None:
                    return query
    return None


OLMO3 = Dialect(
    name="olmo3",
    search_tags=("<function_calls>", "</function_calls>"),
    read_query=_read_first_function_call,
    write_query=lambda query: f"search(query={_json_without_tags(query)})",
    result_tags=None,
    tool_role="environment",
    stop=("</function_calls>", "</task>", "</answer>"),
    template_opens_thinking=True,
    native_thinking=False,
    drops_earlier_thinking=False,
)

DIALECTS = (QWEN25, QWEN3, OLMO3)
