"""Where an evaluation takes place: a run's documents, retriever, prompts and engines, with the budgets of a benchmark.

What is evaluated meets what it met in training; only the budgets, the sampling and perhaps the Solver's prompt are the
benchmark's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from scope_selfplay import engines
from scope_selfplay.benchmarking.contestants import Contestant
from scope_selfplay.config import PartnerConfig, RunConfig
from scope_selfplay.dialects import dialect
from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.evaluation.benchmark import Budget, Decoding, LoadedBenchmark
from scope_selfplay.inference import PolicyModel
from scope_selfplay.inference.checkpoints import check_tags, load_frozen
from scope_selfplay.judge import Judge, VerifierJudge
from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.progress import Activity
from scope_selfplay.prompts import Pack, PromptRole, load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.run import Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Role
from scope_selfplay.search import NothingToSearch, Searcher, open_retriever
from scope_selfplay.store.files import read_value


class EvaluatedRun(Run):
    """A run whose Solver answers a benchmark. No judge is opened before a scorer asks one."""

    @cached_property
    def context(self) -> RunContext:
        searcher: Searcher = NothingToSearch()
        if self.documents and self.config.solver.max_search_turns:
            searcher = open_retriever(self.config.search, self.documents, self.folder, self.outages.append)
        activity = Activity(lambda note: self.progress.pulse(note))
        return RunContext(
            self.config, self.pack, searcher, MeteredJudge(VerifierJudge()), (), activity, self.sampling
        )


@dataclass(frozen=True)
class Answering:
    """What answers as one contestant."""

    engine: PolicyModel
    policy_format: PolicyFormat


@dataclass(frozen=True)
class EvaluationSetting:
    """The place of one evaluation, the same for all contestants."""

    run: EvaluatedRun
    loaded: LoadedBenchmark
    """With the decoding and the budget as they are used."""

    @property
    def decoding(self) -> Decoding:
        return self.loaded.benchmark.decoding

    @property
    def budget(self) -> Budget:
        return self.loaded.benchmark.budget

    @property
    def temperature(self) -> float:
        return self.decoding.temperature_for(self.run.config.model.dialect)

    def answering(self, contestant: Contestant) -> Answering:
        """The engine of a contestant. Raises CheckpointError, ConfigError, InferenceError, RunMismatchError."""
        run, codec = self.run, self._codec(contestant)
        engine = self._engine(contestant, codec)
        family = dialect(run.config.model.dialect, run.config.model.earlier_thinking)
        limits = run.context.limits(Role.SOLVER)
        return Answering(
            engine, PolicyFormat(codec, family, engine.identity, limits, greedy=self.temperature == 0)
        )

    def judges(self, cache: Path) -> list[Judge]:
        """One for each endpoint of judge.evaluate, else the run's own; what they are paid for is kept in `cache`."""
        return [
            self.run.open_judge(settings.model_copy(update={"cache": str(cache.absolute())}))
            for settings in self.run.config.judge.deciding
        ]

    def _engine(self, contestant: Contestant, codec: Any) -> PolicyModel:
        run, policy = self.run, contestant.policy
        own = engines.partner_of(run.config, Role.SOLVER)
        if contestant.base_url is None and own is None:
            assert policy is not None
            model = load_frozen(policy.path, run.config.model.device)
            return engines.in_process_engine(
                run.context, codec, Role.SOLVER, model, identity=policy.identity, frozen=True
            )
        partner = own or PartnerConfig()
        if contestant.base_url is not None:
            where = {"base_url": contestant.base_url, "model": contestant.model}
            partner = run.config.partners.solver.model_copy(update=where)
        return engines.engine_at(
            run.context,
            codec,
            Role.SOLVER,
            partner,
            policy,
            name=contestant.name,
            on_outage=run.outages.append,
            say=run.progress.say,
        )

    def _codec(self, contestant: Contestant) -> Any:
        """A run's checkpoints speak as its base model does; another model has a tokenizer of its own."""
        from scope_selfplay.inference.codec import ChatCodec

        of_run = contestant.run is not None or contestant.policy is None
        folder = self.run.base if of_run or contestant.policy is None else contestant.policy.path
        codec = ChatCodec.load(folder, thinking=self.decoding.thinking)
        model = self.run.config.model
        check_tags(codec, dialect(model.dialect, model.earlier_thinking), where=folder)
        return codec


def setting_of(run: Run, loaded: LoadedBenchmark, decoding: Decoding) -> EvaluationSetting:
    """The evaluation of a benchmark where a run takes place."""
    asked, found = loaded.benchmark, _context_of(run.base)
    budget = fitting_budget(asked.budget, run.config, found, can_search=bool(run.documents))
    config = budgeted(run.config, budget, decoding)
    pack = with_solver_prompt(run.pack, asked.pack)
    place = EvaluatedRun(config, run.folder, pack, run.progress, outages=run.outages)
    taken = replace(asked, decoding=decoding, budget=budget)
    return EvaluationSetting(place, replace(loaded, benchmark=taken))


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


def with_solver_prompt(pack: Pack, name: str | None, packs: Path | None = None) -> Pack:
    """The run's pack, with the Solver's prompt of another one."""
    if name is None:
        return pack
    other = load_pack(pack_path(name, packs))
    prompt = next(prompt for prompt in other.prompts if prompt.role is PromptRole.SOLVER)
    prompts = tuple(prompt if each.role is PromptRole.SOLVER else each for each in pack.prompts)
    return Pack(domain=pack.domain, prompts=prompts)


def without_copies(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Each contestant once, by its name."""
    return list({contestant.name: contestant for contestant in contestants}.values())


def _context_of(folder: Path) -> int | None:
    config = read_value(folder / "config.json", dict[str, Any], "save the model again with save_pretrained")
    holds = (config or {}).get("max_position_embeddings")
    return holds if isinstance(holds, int) else None
