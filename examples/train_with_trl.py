"""A run's tasks in TRL: GRPOTrainer with a reward that reads each task's rubric.

    python examples/train_with_trl.py runs/demo MODEL FOLDER

Here an answer is paid for words that it shares with the criteria, which needs no judge and teaches little: ask a judge
instead (examples/ask_a_judge.py). Needs the extra `train`.
"""

import sys
from pathlib import Path
from typing import Any

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from scope_selfplay.report.export import export_tasks
from scope_selfplay.store.reader import RunReader, find_run


def words_of_rubric(completions: list[Any], rubric: list[Any], **columns: Any) -> list[float]:
    """The share of a rubric's words that an answer has. TRL passes every column of the dataset, a value a row."""
    scores = []
    for (message, *_), criteria in zip(completions, rubric, strict=True):
        asked = {word for criterion in criteria for word in criterion["text"].lower().split()}
        scores.append(len(asked & set(message["content"].lower().split())) / len(asked))
    return scores


def main(run: str, model: str, folder: str) -> None:
    out = Path(folder)
    with RunReader(find_run(run)) as reader:
        export_tasks(reader, "trl", out / "tasks")
    tasks = load_dataset(str(out / "tasks"), cache_dir=str(out / "cache"))
    settings = GRPOConfig(
        output_dir=str(out / "checkpoints"),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=32,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(model, reward_funcs=words_of_rubric, args=settings, train_dataset=tasks["train"])
    trainer.train()
    trainer.save_model(str(out / "model"))


if __name__ == "__main__":
    main(*sys.argv[1:])
