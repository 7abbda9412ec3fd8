"""The pretrained model as judge, asked what is known: is it right, does the place decide, do empty words?

It is asked through the judge's own client, at a chat server over the in-process engine: by the prompts of `wikipedia`
for one token (`verdict: token`), by short prompts for one token, and by those of `wikipedia` for reasoning with a
verdict behind it, as the papers do. A right answer is that of the question; a wrong one is that of the same question
about another country. The right answer stands in the criterion, so that nothing needs to be known.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.real_model.judge_findings import Asked, Judged
from benchmarks.real_model_answers import read_lines
from scope_selfplay.config import JudgeConfig
from scope_selfplay.inference import Generate, Message, TagCodec
from scope_selfplay.inference.chat_server import ServedReply, ServedRequest, reply_app
from scope_selfplay.inference.checkpoints import load_model, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.judge import Style
from scope_selfplay.judge.model import ModelJudge, open_model_judge
from scope_selfplay.judge_audit.asking import padded
from scope_selfplay.prompts import load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.schemas import Comparison, Criterion, Role, Rollout, RolloutStatus, Rubric, Task
from scope_selfplay.store import write_atomic
from scope_selfplay.wire.serving import serving

WRITTEN_TOKENS = 192
"""Room for the reasoning of a written verdict."""
SHOWN = 12
"""Replies of written verdicts that are kept as they were."""


class Form(NamedTuple):
    pack: Path
    verdict: str


FORMS = {
    "token": Form(pack_path("wikipedia"), "token"),
    "short": Form(Path(__file__).parent / "judge_pack", "token"),
    "written": Form(pack_path("wikipedia"), "written"),
}
CASES = {"token": 40, "short": 64, "written": 6}
"""How many cases of each form: a written verdict takes a hundred times as long."""


class Answer(NamedTuple):
    """A verdict as a number, and how likely it was."""

    value: float | None
    odds: float | None


class Case(NamedTuple):
    task: Task
    right: str
    wrong: str

    @property
    def criterion(self) -> Criterion:
        return Criterion(text=f"Gives the right answer: {self.right}")

    @property
    def rubric(self) -> Rubric:
        return Rubric(task_id=self.task.id, criteria=(self.criterion,))


def cases(count: int) -> list[Case]:
    """Held-out questions, spread evenly; the wrong answer is that of the next country with another one."""
    rows = read_lines("held_out")
    chosen = rows[:: max(1, len(rows) // count)][:count]
    return [
        Case(
            Task(id=row["id"], text=row["question"], type="question", document_id=""),
            row["answers"][0],
            _wrong_answer(row, rows),
        )
        for row in chosen
    ]


def _wrong_answer(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    start = rows.index(row)
    others = [*rows[start:], *rows[:start]]
    found = (each["answers"][0] for each in others if each["group"] == row["group"])
    return next(answer for answer in found if answer != row["answers"][0])


def responder(
    engine: InProcessModel, replies: list[str]
) -> Callable[[ServedRequest], Awaitable[ServedReply]]:
    """Answers as vLLM would: one of the choices with their odds, or a sampled text, which is added to `replies`."""

    async def respond(served: ServedRequest) -> ServedReply:
        prompt = tuple(engine.codec.encode_prompt([Message("user", served.prompt)]))
        if served.choices:
            odds = choice_odds(logits_after(engine.model, prompt), served.choices, engine.codec)
            return ServedReply(max(odds, key=odds.__getitem__), odds, finish="length")
        request = Generate(prompt, int(str(served.body["max_tokens"])))
        sample = await engine.sample(request, int(str(served.body.get("seed") or 0)), temperature=0.6)
        replies.append(engine.codec.decode(sample.ids))
        return ServedReply(replies[-1], finish=sample.finish.value)

    return respond


def logits_after(model: Any, ids: Sequence[int]) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1].float().numpy()


def choice_odds(logits: Any, choices: Sequence[str], codec: TagCodec) -> dict[str, float]:
    """The probability of each choice's first token among those of all."""
    firsts = np.array([codec.encode_tag(choice)[0] for choice in choices])
    weights = np.exp(logits[firsts] - logits[firsts].max())
    return dict(zip(choices, (weights / weights.sum()).tolist(), strict=True))


def measure(model: str, folder: Path, counts: Mapping[str, int] = CASES) -> Judged:
    """So many cases of each form of asking; each is kept in a file of the folder, and asked once."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {form: folder / f"{form}.json" for form in counts}
    for form, file in parts.items():
        if not file.exists():
            write_atomic(file, asyncio.run(_measure(model, form, counts[form], folder)).model_dump_json())
    read = [Judged.model_validate_json(file.read_bytes()) for file in parts.values()]
    return Judged(
        forms={form: asked for each in read for form, asked in each.forms.items()},
        replies=tuple(reply for each in read for reply in each.replies),
    )


async def _measure(model: str, form: str, count: int, folder: Path) -> Judged:
    path = policy_path(model)
    engine = InProcessModel(
        load_model(path, precision="bfloat16"),
        ChatCodec.load(path),
        identity=model,
        slots=16,
        max_length=2048,
        deterministic=False,
        frozen=True,
    )
    replies: list[str] = []
    async with serving(reply_app(responder(engine, replies), model=model)) as url:
        # In a thread: it asks the server, which is on this loop.
        judge = await asyncio.to_thread(_judge, url, FORMS[form], folder)
        asked = await _all_asked(judge, cases(count))
        await judge.close()
    return Judged(forms={form: asked}, replies=tuple(replies[:SHOWN]))


def _judge(url: str, form: Form, folder: Path) -> ModelJudge:
    call = {"max_tokens": WRITTEN_TOKENS}
    config = JudgeConfig.model_validate(
        {
            "kind": "model",
            "endpoint": {"base_url": url, "context": 2048},
            "verdict": form.verdict,
            "grade_call": call,
            "compare_call": call,
            "patience": {"retries": 0, "call": 3600, "silence": 3600},
            "concurrency": 16,
            # What cannot be read is what is measured.
            "failure_budget": 1.0,
            "cache": None,
        }
    )
    return open_model_judge(config, load_pack(form.pack), seed=0, folder=folder)


async def _all_asked(judge: ModelJudge, asked: Sequence[Case]) -> tuple[Asked, ...]:
    questions = [_questions(judge, case) for case in asked]
    found = await asyncio.gather(*(asyncio.gather(*(call for _, call in each)) for each in questions))
    names = [name for name, _ in questions[0]]
    return tuple(
        Asked(
            name=name,
            values=tuple(each[row].value for each in found),
            odds=tuple(each[row].odds for each in found),
        )
        for row, name in enumerate(names)
    )


def _questions(judge: ModelJudge, case: Case) -> list[tuple[str, Awaitable[Answer]]]:
    right, wrong = case.right, case.wrong
    return [
        ("grade right", _grade(judge, case, right)),
        ("grade wrong", _grade(judge, case, wrong)),
        ("grade wrong longer", _grade(judge, case, padded(wrong))),
        ("right first", _first_wins(judge, case, right, wrong)),
        ("wrong first", _first_wins(judge, case, wrong, right)),
        ("longer first", _first_wins(judge, case, padded(right), right)),
        ("shorter first", _first_wins(judge, case, right, padded(right))),
    ]


async def _grade(judge: ModelJudge, case: Case, answer: str) -> Answer:
    verdict = await judge.grade(case.task, case.criterion, answer, key=("bench",))
    return Answer(None if verdict.value is None else float(verdict.value), _rounded(verdict.probability))


async def _first_wins(judge: ModelJudge, case: Case, first: str, second: str) -> Answer:
    pair = [_answer(case, text, name) for text, name in ((first, "first"), (second, "second"))]
    found = await judge.compare(case.task, *pair, style=Style.ANSWERS, rubric=case.rubric)
    return Answer(won(found), _rounded(found.verdict.probability))


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


def won(found: Comparison) -> float | None:
    """1 where the first won, 0 where it lost, a half for a tie."""
    outcome = found.outcome
    return None if outcome is None else 0.5 + 0.5 * float(np.sign(outcome.first - outcome.second))


def _answer(case: Case, text: str, name: str) -> Rollout:
    return Rollout(
        id=f"{case.task.id}-{name}",
        role=Role.SOLVER,
        checkpoint="known",
        subject_id=case.task.id,
        turns=(),
        answer=text,
        status=RolloutStatus.FINISHED,
    )
