"""Prompts and cache keys keep their bytes: with other ones, every judgement that a run has paid for is asked again."""

import hashlib
from typing import Any

import pytest

from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import Criterion, Finish, Priority, Rubric
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.judge.model import JudgementCache, ModelJudge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
)
from scope_selfplay.net.chat import ChatReply
from scope_selfplay.prompts.pack import Pack
from tests.judges import CRITERION, DOCUMENT, TASK, rollout

KEYS = {
    "token": "c078c10cce0b3b836f6669a8d4f4bba8fb8b8243df66347b6f0859e87f2a6fdf",
    "written": "e5c9b7b81aea49c23206015ca9857bb7ad461a7ca84adebfe4a9ea76f12188b2",
}
ASKED = TASK.model_copy(update={"reference": "Floods."})
FURTHER = Criterion(text="Names the year.", priority=Priority.BONUS, title="Year", dimension="facts")
RUBRIC = Rubric(task_id=TASK.id, criteria=(CRITERION, FURTHER))
ONE, OTHER = rollout(1, "Because of floods."), rollout(2, "For power.")


class Unread(JudgementCache):
    """Has a reply to everything, which nobody can read, and keeps the keys by which it was asked."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def get(self, key: bytes) -> ChatReply | None:
        self.keys.append(key)
        return ChatReply("Hm.", "", Finish.STOP, 1, 1, {})


def questions() -> list[Question[Any]]:
    return [
        *(GateQuestion(ASKED, gate, DOCUMENT) for gate in Gate),
        RubricQuestion(ASKED, [DOCUMENT, DOCUMENT]),
        RubricQuestion(ASKED, ()),
        GradeQuestion(ASKED, CRITERION, "Because of floods."),
        *(PairQuestion(ASKED, ONE, OTHER, style=style, rubric=RUBRIC) for style in Style),
        PairQuestion(ASKED, ONE, OTHER, style=Style.ANSWERS, rubric=CRITERION),
        SelectQuestion(ASKED, RUBRIC, [ONE, OTHER], 1, repeat=2),
        *(
            ScoreQuestion(ASKED, ONE, CRITERION if scale is Scale.EXPLICIT else RUBRIC, scale=scale)
            for scale in Scale
        ),
    ]


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
