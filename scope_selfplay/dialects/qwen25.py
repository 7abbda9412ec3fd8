"""Qwen2.5: a search is a tag of its own, results come back in a user message between information tags.

The family has native tool calls; the paper does not use them for it, because this is the form that its
instruction-tuned models keep best (SCOPE appendix E). A query cannot hold a tag of the protocol.
"""

from scope_selfplay.dialects.turn import Dialect, valid_query

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
