"""A run in a notebook, `scope_selfplay.Run`. What takes long is done by `scope` in a process of its own, so
that a notebook's event loop is in nobody's way and an interrupt ends it in order.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import ConfigError, OutsideError, ScopeError, UserError, imports_for
from scope_selfplay.base.values import Candidate, Comparison, Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.evaluation.metrics import EvaluationResult
from scope_selfplay.evaluation.pairs import compare_pair
from scope_selfplay.judge.protocol import PairQuestion, Style
from scope_selfplay.net.loops import at_once
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.run import Run
from scope_selfplay.store.columns import RecordKind, record_of
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.store.reader import RunReader, find_run

Settings = Mapping[str, object] | None
Records = Literal["tasks", "rejected", "rollouts", "grades", "metrics"]
_IN = {
    "tasks": (RecordKind.CANDIDATES, "stage = 'tasks' AND status = 'accepted'"),
    "rejected": (RecordKind.CANDIDATES, "stage = 'tasks' AND status <> 'accepted'"),
    "rollouts": (RecordKind.ROLLOUTS, "true"),
    "grades": (RecordKind.GRADES, "true"),
}


class NotebookRun:
    """A run folder, finished or not, by its path or its name under `runs/`.

    Its methods take options of the commands by their names (`gpus=1`, `items=20`), and `settings` that change its own
    by dotted name. They raise a ScopeError, of one line, for what goes wrong; RecordError where there is no run.
    """

    def __init__(self, run: str | Path) -> None:
        with RunReader(find_run(str(run))) as reader:
            self.path = reader.folder.path

    @classmethod
    def start(cls, config: str | Path = DEFAULT_CONFIG, settings: Settings = None, **options: Any) -> Self:
        """Begin a run and bring it to its end (`scope run`); the same call goes on. By default the demo."""
        summary = json.loads(_scope("run", settings, config=config, json=True, **options))
        return cls(Path(options.get("root", "runs")) / summary["run"])

    def resume(self, settings: Settings = None, **options: Any) -> None:
        """Go on (`scope continue`), with `iterations=4` to so many in all."""
        _scope("continue", settings, self.path, **options)

    def records(self, what: Records, iteration: int | None = None) -> list[Any]:
        """Candidates that became tasks or were rejected, rollouts, grades, or rows of training metrics, of one
        iteration (0: held out) or of all, as they are now.
        """
        rows = self._rows(what, iteration)
        return rows if what == "metrics" else [record_of(self.path, _IN[what][0].model, row) for row in rows]

    def frame(self, what: Records, iteration: int | None = None) -> Any:
        """The same as a pandas DataFrame, with `iteration` and `stage`; a part's column is `task.text` and so on."""
        with imports_for("Run.frame", "train"):
            from pandas import json_normalize
        return json_normalize(self._rows(what, iteration))

    def evaluate(
        self, checkpoint: str, benchmark: str, against: Sequence[str] = (), **options: Any
    ) -> EvaluationResult:
        """Let S_2 of this run, or another checkpoint, answer a benchmark, beside others (`scope eval`)."""
        names = (re.sub(r"^(?=[CS]_\d+$)", f"{self.path}:", name) for name in (checkpoint, *against))
        said = _scope("eval", None, next(names), benchmark=benchmark, against=[*names], json=True, **options)
        return EvaluationResult.model_validate_json(said)

    def judge_pair(self, task: Candidate, first: Rollout | str, second: Rollout | str) -> Comparison:
        """What the run's judge says of two answers to a task of it, the first shown first: ask in both orders, since
        a judge may favour one. `outcome` is None where it said nothing that can be read.
        """
        assert task.task is not None, "this candidate has no task"
        named = (("first", first), ("second", second))
        one, other = (
            Rollout.of_answer(each, name) if isinstance(each, str) else each for name, each in named
        )
        folder = RunFolder(self.path)
        judge = Run(load_config(folder.config), folder, load_pack(folder.prompts)).open_judge()
        question = PairQuestion(task.task, one, other, style=Style.ANSWERS, rubric=task.rubric)
        return at_once(compare_pair(judge, question))

    def _rows(self, what: Records, iteration: int | None) -> list[dict[str, Any]]:
        if what not in get_args(Records):
            raise ConfigError(f"found {what!r}, expected one of {', '.join(get_args(Records))}")
        with RunReader(self.path) as reader:
            if what != "metrics":
                (kind, where), only = _IN[what], "iteration = coalesce(?, iteration)"
                return reader.sql(
                    f"SELECT * FROM {kind} WHERE {where} AND {only} ORDER BY ordinal", [iteration]
                )
            return [
                {"iteration": number, "stage": stage.value, **row}
                for number, stage in reader.stages()
                if iteration in (None, number)
                for row in reader.metrics(number, stage)
            ]


def _scope(command: str, settings: Settings, *words: object, **options: Any) -> str:
    """What the command prints; its progress is shown as it comes. Raises the error that it ends with."""
    given = [f"--set={name}={json.dumps(value, default=str)}" for name, value in (settings or {}).items()]
    for name, value in options.items():
        several = value if isinstance(value, list | tuple) else [value]
        given += [f"--{name}" if each is True else f"--{name}={each}" for each in several if each is not None]
    called = [sys.executable, "-m", "scope_selfplay", command, *map(str, words), *given]
    said = ""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        with subprocess.Popen(called, stdout=out, stderr=subprocess.PIPE, encoding="utf-8") as process:
            for said in process.stderr or ():
                sys.stderr.write(said)
        if process.returncode:
            kinds = {int(kind.exit_code): kind for kind in (UserError, OutsideError)}
            raise kinds.get(process.returncode, ScopeError)(said.strip().removeprefix("scope: "))
        out.seek(0)
        return out.read()
