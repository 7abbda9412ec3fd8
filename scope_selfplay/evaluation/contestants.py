"""Who answers a benchmark: a Solver of a run, a model directory, a served model; or answers that a file holds.

demo:S_2  demo:2  runs/demo:C_1    the checkpoint of a run; demo:S_0 is the base model
/models/qwen3-8b  embedded         a model directory, or one that was fetched by its name (`scope models`)
http://127.0.0.1:8000/v1           whatever is served there, #NAME where a server has several models
demo:S_2@http://127.0.0.1:8000/v1  a checkpoint, sampled where it is served: the server must serve its weights
answers.jsonl                      lines with `id` and `answer`, to compare with
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import CheckpointError
from scope_selfplay.base.terminal import Activity
from scope_selfplay.base.values import Role
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.evaluation.benchmarks import Benchmark, Budget, Decoding
from scope_selfplay.inference.checkpoints import EMBEDDED, policy_path
from scope_selfplay.inference.models import MODELS
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.policy.episodes import Player
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.run import Run, partner_of
from scope_selfplay.run.schedule import PolicyVersion
from scope_selfplay.search.searcher import NothingToSearch
from scope_selfplay.store.files import read_value
from scope_selfplay.store.folder import Policy, RunFolder
from scope_selfplay.store.reader import find_run

_OF_RUN = re.compile(r"(?P<run>.+):(?P<role>[SC]_)?(?P<iteration>\d{1,4})")
_SERVED_AT = re.compile(r"@(?=https?://)")
_FORMS = "give RUN:S_2, a model directory, http://HOST:PORT/v1, or a file of answers that ends in .jsonl"


@dataclass(frozen=True)
class Contestant:
    """One of those that are compared. `name` is how it was asked for; without `policy` it is what `base_url` serves."""

    name: str
    policy: Policy | None = None
    base_url: str | None = None
    model: str | None = None
    """Which of several models of a server."""
    answers: Path | None = None
    """Its answers, where they are given."""
    run: Path | None = None
    """The run that it belongs to."""


def read_contestant(asked: str) -> Contestant:
    """A contestant by one of the forms above. Raises CheckpointError."""
    if asked.startswith(("http://", "https://")):
        url, _, model = asked.partition("#")
        return Contestant(asked, base_url=url, model=model or None)
    if asked.endswith(".jsonl"):
        if not Path(asked).is_file():
            raise CheckpointError(f"{asked}: there is no such file of answers; {_FORMS}")
        return Contestant(Path(asked).stem, answers=Path(asked))
    where, *served = _SERVED_AT.split(asked, maxsplit=1)
    url, _, model = served[0].partition("#") if served else ("", "", "")
    if (found := _OF_RUN.fullmatch(where)) and not Path(where).is_dir():
        role = Role.CHALLENGER if found["role"] == "C_" else Role.SOLVER
        found_there = _of_run(where, find_run(found["run"]), PolicyVersion(role, int(found["iteration"])))
        return replace(found_there, base_url=url or None, model=model or None)
    if where != EMBEDDED and where not in MODELS and not Path(where).is_dir():
        raise CheckpointError(f"{where}: there is no such model directory; {_FORMS}")
    folder = policy_path(where)
    name = Path(where).resolve().name if Path(where).is_dir() else where
    return Contestant(name, Policy(name, folder), base_url=url or None, model=model or None)


def _of_run(asked: str, run: Path, version: PolicyVersion) -> Contestant:
    folder = RunFolder(run)
    if not folder.config.is_file():
        raise CheckpointError(f"{asked}: {run} has no run.yaml, so it is no run; {_FORMS}")
    path = version.checkpoint(folder) or policy_path(load_config(folder.config).model.path, folder.base)
    if not (path / "config.json").is_file():
        there = [
            f"{letter}_{int(found.parts[-4].removeprefix('iteration-'))}"
            for letter, name in (("C", "challenger"), ("S", "solver"))
            for found in sorted(run.glob(f"iteration-*/{name}/checkpoint/config.json"))
        ]
        raise CheckpointError(
            f"{asked}: {path} is not there; checkpoints of {run}: {', '.join(there) or 'none but S_0'}"
        )
    name = f"{run.resolve().name}:{version.name}"
    return Contestant(name, Policy(version.name, path), run=run)


class EvaluatedRun(Run):
    """A run whose Solver answers a benchmark. No judge is opened before a scorer asks one."""

    @cached_property
    def context(self) -> RunContext:
        searcher = self.searcher if self.config.solver.max_search_turns else NothingToSearch()
        activity = Activity(lambda note: self.progress.pulse(note))
        return RunContext(
            self.config, self.pack, searcher, MeteredJudge(VerifierJudge()), (), activity, self.sampling
        )


def answering_as(run: EvaluatedRun, contestant: Contestant, decoding: Decoding) -> Player:
    """What answers as a contestant. Raises CheckpointError, ConfigError, InferenceError, RunMismatchError."""
    partner, policy = partner_of(run.config, Role.SOLVER), contestant.policy
    # A run's checkpoints speak as its base model does; another model has a tokenizer of its own.
    speaks = run.base if policy is None or contestant.run is not None else policy.path
    codec = run.codec_of(speaks, thinking=decoding.thinking)
    if contestant.base_url is not None:
        where = {"base_url": contestant.base_url, "model": contestant.model}
        partner = run.config.partners.solver.model_copy(update=where)
    engine = run.engine(policy, Role.SOLVER, codec=codec, partner=partner, name=contestant.name)
    greedy = decoding.temperature_for(run.config.model.dialect) == 0
    form = run.context.policy_format(codec, Role.SOLVER, engine.identity, greedy=greedy)
    keeps_form = contestant.run is None and run.keeps_form(policy, Role.SOLVER, partner)
    return Player(engine, replace(form, keeps_form=keeps_form))


def placed(run: Run, asked: Benchmark, decoding: Decoding) -> tuple[EvaluatedRun, Benchmark]:
    """A benchmark where a run takes place: the run with its budgets and prompt, and the benchmark as it is asked."""
    config = read_value(run.base / "config.json", dict[str, Any], "save the model again with save_pretrained")
    holds = (config or {}).get("max_position_embeddings")
    context = holds if isinstance(holds, int) else None
    budget = fitting_budget(asked.budget, run.config, context, can_search=bool(run.documents))
    pack = run.pack
    if asked.pack is not None:
        solvers = [
            each for each in load_pack(pack_path(asked.pack)).prompts if each.role is PromptRole.SOLVER
        ]
        prompts = tuple(solvers[0] if each.role is PromptRole.SOLVER else each for each in pack.prompts)
        pack = Pack(domain=pack.domain, prompts=prompts)
    place = EvaluatedRun(
        budgeted(run.config, budget, decoding), run.folder, pack, run.progress, outages=run.outages
    )
    return place, replace(asked, decoding=decoding, budget=budget)


def fitting_budget(asked: Budget, config: RunConfig, context: int | None, *, can_search: bool) -> Budget:
    """The budget of a benchmark, or as much of it as a model of `context` tokens can hold.

    A model that is too small for it searches as in its own run.
    """
    turns = asked.search_turns if can_search else 0
    if context is None or context >= asked.context:
        return asked.model_copy(update={"search_turns": turns})
    return Budget(
        context=min(context, config.model.max_length),
        answer=min(asked.answer, context, config.model.max_length),
        search_turns=turns,
        passages=min(asked.passages, config.search.topk),
        passage_tokens=min(asked.passage_tokens, config.search.max_tokens),
    )


def budgeted(config: RunConfig, budget: Budget, decoding: Decoding) -> RunConfig:
    """The run's config with the budgets and the sampling of an evaluation."""
    temperature = decoding.temperature_for(config.model.dialect)
    sampling = {"temperature": temperature or 1.0, "top_p": decoding.top_p}
    solver = {
        # The context bounds prompt and response together; a single turn never writes more than an answer may have.
        "max_prompt": budget.context - 1,
        "max_response": budget.context,
        "max_turn": budget.answer,
        "max_search_turns": budget.search_turns,
    }
    search = {"topk": budget.passages, "max_tokens": budget.passage_tokens}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"max_length": budget.context}),
            "sampling": config.sampling.model_copy(update=sampling),
            "solver": config.solver.model_copy(update=solver),
            "search": config.search.model_copy(update=search),
        }
    )
