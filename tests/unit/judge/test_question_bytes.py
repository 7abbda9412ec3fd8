"""Prompts and cache keys keep their bytes: with other ones, every judgement that a run has paid for is asked again."""

import hashlib

import pytest

from scope_selfplay.base.values import Finish
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.judge.model import JudgementCache, ModelJudge
from scope_selfplay.net.chat import ChatReply
from scope_selfplay.prompts.pack import Pack
from tests.judges import questions

KEYS = {
    "token": "c078c10cce0b3b836f6669a8d4f4bba8fb8b8243df66347b6f0859e87f2a6fdf",
    "written": "e5c9b7b81aea49c23206015ca9857bb7ad461a7ca84adebfe4a9ea76f12188b2",
}


class Unread(JudgementCache):
    """Has a reply to everything, which nobody can read, and keeps the keys by which it was asked."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def get(self, key: bytes) -> ChatReply | None:
        self.keys.append(key)
        return ChatReply("Hm.", "", Finish.STOP, 1, 1, {})


@pytest.mark.parametrize("verdict", KEYS)
async def test_a_judgement_that_was_paid_for_is_found_again(pack: Pack, verdict: str) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    settings = {"kind": "model", "endpoint": endpoint, "verdict": verdict, "failure_budget": 1}
    settings["retries"] = 1
    cache = Unread()
    judge = ModelJudge(JudgeConfig.model_validate(settings), pack, seed=3, cache=cache)
    for question in questions():
        await judge.ask(question)
    await judge.close()
    assert len(cache.keys) == 2 * len(questions())
    assert hashlib.sha256(b"".join(cache.keys)).hexdigest() == KEYS[verdict]
