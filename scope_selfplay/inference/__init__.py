"""Where text comes from: what an episode asks of a policy, and the engines that answer.

`protocol` (what is asked, and a policy that follows a script; pure) - `codec` (text <-> token ids through a chat
template) - `checkpoints` (model directories: checked, loaded) - `in_process` (transformers on this machine, over
`slot_cache`; loads torch, lazily) - `sampling_processes` (it in several processes) - `served_model` (a policy over
HTTP, `scope serve-model` or vLLM) - `stepped_engine` (a vLLM of this process).
"""

from scope_selfplay.inference.protocol import (
    Generate,
    Message,
    PolicyModel,
    Sample,
    ScriptedModel,
    TagCodec,
    TextCodec,
    ids_of_turn,
)

__all__ = [
    "Generate",
    "Message",
    "PolicyModel",
    "Sample",
    "ScriptedModel",
    "TagCodec",
    "TextCodec",
    "ids_of_turn",
]
