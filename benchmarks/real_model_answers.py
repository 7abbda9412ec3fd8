"""What a real model answers to held-out questions of the Factbook, greedily: from memory, and with the right passage.

    python -m benchmarks.real_model_answers [--model smollm2] [--questions 40]

The distance between the two is what search can give; a policy that finds the passage and reads it ends there.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.options import read_options
from scope_selfplay.base.intervals import SHARES, estimate_mean
from scope_selfplay.base.sampling import Generate, Message
from scope_selfplay.inference.checkpoints import load_model, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.rewards.verify import cover_exact_match, exact_match, f1

FACTBOOK = Path(__file__).parents[1] / "tests" / "fixtures" / "factbook"
SCORERS = {"exact match": exact_match, "F1": f1, "cover": cover_exact_match}


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTBOOK / f"{name}.jsonl").read_text("utf-8").splitlines()]


def passage_of(question_id: str) -> str:
    """The id of the passage that holds the answer to a question."""
    country, _, field = question_id.partition("-")
    return f"{country}-{'geography' if field in ('highest', 'height', 'lowest') else 'government'}"


def answers_of(engine: InProcessModel, questions: list[dict[str, Any]], shown: list[str]) -> list[str]:
    """Each question's greedy answer, behind the text that is shown with it."""

    async def one(question: str, text: str) -> str:
        asked = f"{text}{question} Answer in as few words as possible."
        prompt = tuple(engine.codec.encode_prompt([Message("user", asked)]))
        sample = await engine.sample(Generate(prompt, 32, greedy=True), 0)
        return engine.codec.decode(sample.ids).strip()

    async def all_answers() -> list[str]:
        pairs = zip(questions, shown, strict=True)
        return await asyncio.gather(*(one(question["question"], text) for question, text in pairs))

    return asyncio.run(all_answers())


def main() -> None:
    asked = read_options(__doc__, model="smollm2", questions=40)
    passages = {row["id"]: row["contents"] for row in read_lines("passages")}
    questions = read_lines("held_out")
    questions = questions[:: max(1, len(questions) // asked.questions)][: asked.questions]
    folder = policy_path(asked.model)
    engine = InProcessModel(
        load_model(folder),
        ChatCodec.load(folder),
        identity=asked.model,
        slots=24,
        max_length=700,
        deterministic=False,
        packed=True,
        frozen=True,
    )
    settings = {
        "from memory": ["" for _ in questions],
        "with the passage": [f"{passages[passage_of(each['id'])]}\n\n" for each in questions],
    }
    for name, shown in settings.items():
        answers = answers_of(engine, questions, shown)
        print(f"{name}, {len(questions)} questions")
        for scorer, score in SCORERS.items():
            marks = [score(answer, each["answers"]) for answer, each in zip(answers, questions, strict=True)]
            found = estimate_mean(marks, seed=0, bounds=SHARES)
            assert found is not None
            print(f"  {scorer}: {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")


if __name__ == "__main__":
    main()
