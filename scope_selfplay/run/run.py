"""An opened run: its config, prompts, documents, judge and policies, the same for every stage.

It is opened by `begin.open_run`, which checks everything that can be checked before work begins.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from scope_selfplay import __version__
from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.base.sampling import PolicyModel
from scope_selfplay.base.terminal import Activity, Progress
from scope_selfplay.base.values import Document, Key, Provenance, Role
from scope_selfplay.config.base import ServedConfig
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.run import RunConfig
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import check_tags, load_frozen, policy_path
from scope_selfplay.inference.processes import SamplingProcesses
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.canaries import CanaryWatch
from scope_selfplay.judge.cases import cases_of
from scope_selfplay.judge.model import ModelJudge, open_model_judge
from scope_selfplay.judge.protocol import Judge
from scope_selfplay.judge.rules import LexicalJudge, VerifierJudge, with_noise
from scope_selfplay.policy.episodes import Player, PolicyFormat
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.run import engines, schedule
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.exam import thresholds_of
from scope_selfplay.search.mcp import OpenedTools, check_same_tools, open_tools
from scope_selfplay.search.searcher import NothingToSearch, Searcher, open_retriever
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Policy, RunFolder, Stage
from scope_selfplay.store.ratings import read_fork, read_ratings


@dataclass
class Run:
    """One run on disk. Heavy parts (tokenizer, searcher, models) are opened when first used."""

    config: RunConfig
    folder: RunFolder
    pack: Pack
    progress: Progress = field(default_factory=Progress)
    attempt: int = 1
    outages: list[OutsideError] = field(default_factory=list)
    """Servers that were down for longer than the run waits: what failed with them is not kept."""

    @cached_property
    def base(self) -> Path:
        return policy_path(self.config.model.path, self.folder.base)

    @cached_property
    def codec(self) -> Any:
        codec, model = self.codec_of(self.base), self.config.model
        words = len(codec.tokenizer)
        if model.engine == "in_process" and not engines.samples_exactly(model, words):
            self.progress.say(
                f"a vocabulary of {words:,} tokens: this process samples in bfloat16 where the CPU has it, and "
                "rounding may decide a token (model.deterministic: true is exact and about half as fast)"
            )
        return codec

    def codec_of(self, folder: Path, **options: Any) -> Any:
        """How a model in a folder reads and writes in the run's dialect. Raises CheckpointError."""
        from scope_selfplay.inference.codec import ChatCodec

        codec, model = ChatCodec.load(folder, **options), self.config.model
        check_tags(codec, dialect(model.dialect, model.earlier_thinking), where=folder)
        return codec

    @cached_property
    def documents(self) -> list[Document]:
        """Everything that can be searched: the source documents and those of the held-out tasks."""
        return read_records(self.folder.corpus, Document)

    @cached_property
    def searcher(self) -> Searcher:
        search = (self.config.search, self.documents, self.folder, self.outages.append, self._say)
        return open_retriever(*search) if self.documents else cast(Searcher, NothingToSearch())

    @cached_property
    def opened_tools(self) -> OpenedTools:
        """The Solver's besides search, with the processes and connections behind them; `close` ends these."""
        return open_tools(self.config.tools, self.searcher, self.outages.append)

    @cached_property
    def context(self) -> RunContext:
        config, searcher, tools = self.config, self.searcher, self.opened_tools.tools
        if config.judge.noise:
            self.progress.say(f"the judge errs on purpose: {config.judge.noise.description} (judge.noise)")
        if config.tools:
            check_same_tools(self.folder, tools)
        gates = self.pack.domain.gates if config.judge.gates is None else config.judge.gates
        judge, activity = MeteredJudge(self.open_judge()), Activity(lambda note: self.progress.pulse(note))
        return RunContext(config, self.pack, searcher, judge, gates, activity, self.sampling, tools)

    @cached_property
    def sampling(self) -> SamplingProcesses | None:
        """Processes that sample beside this one, for all stages; `close` ends them."""
        return engines.sampling_processes(self.config, self.outages.append)

    def close(self) -> None:
        """End the processes that sample beside this one, and those of tools, if there are any."""
        for name in ("context", "opened_tools", "sampling"):
            opened = self.__dict__.pop(name, None)
            if hasattr(opened, "close"):
                opened.close()

    def check_outages(self) -> None:
        """Raises OutsideError when a server was down for too long; call it before results are kept."""
        if self.outages:
            raise self.outages[0]

    @cached_property
    def deciding_judge(self) -> Judge:
        """The judge that promotion goes by: the first of judge.evaluate, else the one that trains."""
        if not self.config.judge.evaluate:
            return self.context.judge.judge
        return self.open_judge(self.config.judge.deciding[0])

    def judge_of(self, stage: Stage) -> Judge:
        """The judge that a stage asks."""
        return self.deciding_judge if stage is Stage.COMPARE else self.context.judge.judge

    def stage_context(self, iteration: int, stage: Stage) -> RunContext:
        """The context with an account of the stage's judge that begins at nothing, and with its canaries."""
        judge = self.judge_of(stage)
        if isinstance(judge, ModelJudge):
            judge.roles.clear()
        settings = self.config.judge
        watch = None
        if settings.canary_rate:
            watch = CanaryWatch(
                judge,
                cases_of(settings.canaries.file, self.documents),
                rate=settings.canary_rate,
                place=(self.folder, iteration, stage),
                seed=self.config.seed,
            )
        return replace(self.context, judge=MeteredJudge(watch or judge), canaries=watch)

    def config_hash_of(self, iteration: int) -> str:
        """The config that an iteration is made by; shared iterations of a fork were made by another run's."""
        fork = read_fork(self.folder)
        if fork is not None and iteration <= fork.after:
            return fork.config_hashes[iteration]
        return self.config.hash

    def key(self, iteration: int, stage: Stage) -> Key:
        return (self.config.seed, iteration, stage.value)

    def challenger(self, iteration: int) -> Policy:
        return self._policy(schedule.challenger_of(self.config, iteration))

    def solver(self, iteration: int) -> Policy:
        """S_t as trained in iteration t, promoted or not."""
        return self._policy(schedule.solver_of(iteration))

    def promoted_solver(self, iteration: int) -> Policy:
        """The Solver that iteration t + 1 starts from."""
        return self._policy(
            schedule.promoted_solver(iteration, lambda number: read_ratings(self.folder, number).promoted)
        )

    def stop_reason(self, iteration: int) -> str | None:
        """Why the run ends with this iteration, if its comparison said so and the config still asks for it."""
        return schedule.stop_message(self.config, iteration, read_ratings(self.folder, iteration))

    def _policy(self, version: schedule.PolicyVersion) -> Policy:
        return Policy(version.name, version.checkpoint(self.folder) or self.base)

    def engine(
        self,
        policy: Policy | None,
        role: Role,
        *,
        codec: Any = None,
        partner: ServedConfig | None = None,
        name: str = "",
    ) -> PolicyModel:
        """What samples from a frozen policy: the partner of its role, or an engine in this process.

        A `partner` that is given, with its `name` for messages, may serve anything where there is no policy.
        """
        codec, partner = codec or self.codec, partner or engines.partner_of(self.config, role)
        if partner is None:
            assert policy is not None
            model, named = load_frozen(policy.path), policy.identity
            return engines.in_process_engine(self.context, codec, role, model, identity=named, frozen=True)
        return engines.engine_at(
            self.context,
            codec,
            role,
            partner,
            policy,
            name=name or f"partners.{role.value}",
            on_outage=self.outages.append,
            say=self.progress.say,
        )

    def policy_format(self, policy: Policy, role: Role, *, greedy: bool = False) -> PolicyFormat:
        return self.context.policy_format(self.codec, role, policy.identity, greedy=greedy)

    def player(self, policy: Policy, role: Role, *, greedy: bool = False) -> Player:
        """A frozen policy in its role; a greedy one takes the likeliest token."""
        form = self.policy_format(policy, role, greedy=greedy)
        keeps_form = self.keeps_form(policy, role, engines.partner_of(self.config, role))
        return Player(self.engine(policy, role), replace(form, keeps_form=keeps_form))

    def keeps_form(self, policy: Policy | None, role: Role, partner: ServedConfig | None) -> bool:
        """Whether a frozen policy's engine keeps its turns in form: never those of one that was trained here.

        Raises ConfigError where the engine is none that can.
        """
        if role not in self.config.partners.keep_form:
            return False
        if partner is None:
            raise ConfigError(
                f"partners.keep_form names the {role}, whose turns a vLLM keeps in form; set partners.{role}.base_url"
            )
        return policy is None or not policy.path.is_relative_to(self.folder.path)

    def provenance(
        self, iteration: int, stage: Stage, challenger: Policy, solver: Policy | None
    ) -> Provenance:
        return Provenance(
            run=self.config.name,
            iteration=iteration,
            stage=stage.value,
            document_id="",
            challenger=challenger.identity,
            solver=solver.identity if solver else "",
            judge=self.context.judge.identity,
            index=self.context.searcher.identity,
            prompt_hash=self.pack.hash,
            config_hash=self.config.hash,
            seed=self.config.seed,
            version=__version__,
        )

    def _examined(self, judge: ModelJudge) -> dict[str, float]:
        return thresholds_of(judge, self.config, self.pack, self.documents, self.folder, self._say)

    def _say(self, text: str) -> None:
        """To whatever shows the run's progress then."""
        self.progress.say(text)

    def open_judge(self, settings: JudgeConfig | None = None) -> Judge:
        """The judge of these settings, else the one that the config asks for, with an account of its own."""
        settings = settings or self.config.judge
        match settings.kind:
            case "lexical":
                return with_noise(LexicalJudge(), settings.noise)
            case "verifier":
                return with_noise(VerifierJudge(), settings.noise)
            case "model":
                judge = open_model_judge(
                    settings,
                    self.pack,
                    seed=self.config.seed,
                    folder=self.folder.path,
                    say=self._say,
                    # Who decides and trains nobody is not examined.
                    examined=self._examined if settings is self.config.judge else None,
                )
                if not judge.knows_tokens:
                    self.progress.say(
                        "the judge's endpoint does not list its special tokens: those of the known model families are "
                        "kept out of its prompts (judge.endpoint.tokenizer names others)"
                    )
                return judge
