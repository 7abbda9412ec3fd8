"""A judge asked from a notebook: open this file as one (cells begin with `# %%`), or run it.

    scope serve-judge --rehearsal --port 8001 &
    JUDGE=http://127.0.0.1:8001/v1 python examples/ask_a_judge.py

JUDGE is any OpenAI-compatible server; the rehearsal answers at random. A reply's value is None where the judge said
nothing that can be read: never 0.
"""

# %% The judge, with the prompts of a pack
import asyncio
import os
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scope_selfplay.base.values import Criterion, Document, Gate, Priority, Task
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, RubricQuestion
from scope_selfplay.prompts.folder import load_pack, pack_path


def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In a thread, because a notebook's own event loop is running already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


url = os.environ.get("JUDGE", "http://127.0.0.1:8001/v1")
settings = load_config(None, ["judge.kind=model", f"judge.endpoint.base_url={url}"]).judge
judge = ModelJudge(wait(with_models(settings)), load_pack(pack_path("wikipedia")), seed=0)

# %% Is the task about its document?
dam = Document(
    id="dam", title="Hoover Dam", text="Hoover Dam was built from 1931 to 1936 on the Colorado River."
)
task = Task(id="when", text="When was Hoover Dam finished, and on which river?", type="qa", document_id="dam")
gate = wait(judge.ask(GateQuestion(task, Gate.SOURCE, dam)))
print("gate", gate.value, gate.verdict.reasoning)

# %% What must a good answer have?
rubric = wait(judge.ask(RubricQuestion(task, [dam]))).value
print("rubric", [criterion.text for criterion in rubric.criteria] if rubric else None)

# %% Does this one?
criterion = Criterion(text="Gives the year 1936.", priority=Priority.CRITICAL)
for answer in ("In 1936, on the Colorado.", "I do not know."):
    print("grade", wait(judge.ask(GradeQuestion(task, criterion, answer))).value, answer)
