"""A policy that says what it is told to: for tests, for teachers of a warm start, for a human at a terminal."""

from collections.abc import Callable

from scope_selfplay.inference.protocol import Generate, Sample, TextCodec
from scope_selfplay.schemas import Finish, Key

Script = Callable[[str, Key], str]
"""Prompt text and key of the call -> what the policy says."""


class ScriptedModel:
    def __init__(self, codec: TextCodec, script: Script, *, identity: str = "scripted") -> None:
        self._codec = codec
        self._script = script
        self._identity = identity

    @property
    def identity(self) -> str:
        return self._identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        text = self._script(self._codec.decode(request.prompt_ids), key)
        ids = self._codec.encode_tag(text)
        if len(ids) > request.max_tokens:
            return Sample(ids[: request.max_tokens], None, Finish.LENGTH)
        return Sample(ids, None, Finish.STOP)
