"""An opened run: its config, prompts, documents, judge and policies, the same for every stage.

Here its settings become what samples from a policy: an engine in this process, or a partner that is served elsewhere.
It is opened by `begin.open_run`, which checks everything that can be checked before work begins.
"""

import os
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scope_selfplay import __version__
from scope_selfplay.base.errors import ConfigError, OutsideError, RunMismatchError
from scope_selfplay.base.sampling import PolicyModel
from scope_selfplay.base.terminal import Activity, Progress
from scope_selfplay.base.values import Document, Key, Provenance, Role
from scope_selfplay.config.base import ServedConfig
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import check_tags, load_frozen, policy_path, sampling_device
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.draws import LARGE_VOCABULARY
from scope_selfplay.inference.processes import SamplingProcesses
from scope_selfplay.inference.served import Served, ServedModel, ask_servers
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.canaries import CanaryWatch
from scope_selfplay.judge.cases import cases_of
from scope_selfplay.judge.model import ModelJudge, open_model_judge
from scope_selfplay.judge.protocol import Judge
from scope_selfplay.judge.rules import LexicalJudge, VerifierJudge, with_noise
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.net.guard import secret
from scope_selfplay.net.loops import at_once
from scope_selfplay.policy.episodes import Player, PolicyFormat, RolloutLimits
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.run import schedule
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.exam import RunExam
from scope_selfplay.search.mcp import OpenedTools, check_same_tools, open_tools
from scope_selfplay.search.searcher import NothingToSearch, Searcher, open_retriever
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Policy, RunFolder, Stage
from scope_selfplay.store.ratings import read_ratings

if TYPE_CHECKING:
    from scope_selfplay.inference.in_process import InProcessModel
    from scope_selfplay.inference.processes import SpreadModel

SERVER_RETRIES = RetryPolicy(deadline=600.0, attempt=900.0, attempts=None, max_response=64 << 20)
"""A turn may take 900 seconds; a server that is down is waited for 600, then the stage stops and can be resumed."""


def in_process_engine(
    context: RunContext, codec: ChatCodec, role: Role, model: Any, *, identity: str, frozen: bool = False
) -> "InProcessModel | SpreadModel":
    """What samples from `model`, a causal language model, by the run's settings; it is not copied if `frozen`.

    An engine in this process, and where the run has sampling processes one in each of them.
    """
    from scope_selfplay.inference.in_process import InProcessModel

    config, spread = context.config, context.sampling
    share = spread.share if spread is not None else 1
    exact = samples_exactly(config.model, len(codec.tokenizer))
    options: dict[str, Any] = {
        "slots": -(-config.model.slots // share),
        "max_length": _max_length(config, context.limits(role)),
        "temperature": config.sampling.temperature,
        "top_p": config.sampling.top_p,
        "deterministic": exact,
        "packed": not exact and not config.model.lora_rank,
        "share": share,
    }
    on_tokens = context.activity.sampled
    engine = InProcessModel(model, codec, identity=identity, frozen=frozen, on_tokens=on_tokens, **options)
    return engine if spread is None else spread.spread(engine, options)


def samples_exactly(model: ModelConfig, vocabulary: int) -> bool:
    """Whether what shares its batch decides no token: model.deterministic, chosen by its cost where that is `auto`."""
    if model.deterministic == "auto":
        return vocabulary <= LARGE_VOCABULARY or model.processes > 1
    return model.deterministic


def partner_of(config: RunConfig, role: Role) -> ServedConfig | None:
    """Where a frozen policy of this role is served; None where it runs in this process."""
    partner = config.partners.solver if role is Role.SOLVER else config.partners.challenger
    return partner if partner.base_url is not None else None


def check_served(served: Served, policy: Policy, where: str) -> str | None:
    """None where the weights are known to be equal, else a remark on what was compared instead.

    A server that names no weights (vLLM) must serve the checkpoint's folder, or serve it under a name that ends
    with the hash of its weights. Raises RunMismatchError.
    """
    if served.weights is not None:
        if served.weights != policy.weights:
            raise RunMismatchError(
                f"{where} serves weights {served.weights}, {policy.identity} is expected; serve {policy.path}"
            )
        return None
    if served.model.endswith(policy.weights):
        return f"{where} names no weights; trusted by its model's name, {served.model}"
    if served.root is not None and Path(served.root).resolve() == policy.path.resolve():
        return f"{where} names no weights; trusted by its model's folder, {served.root}"
    raise RunMismatchError(
        f"{where} serves {served.model} from {served.root}, {policy.identity} is expected; serve "
        f"{policy.path}, or name the model {policy.identity} (vLLM: --served-model-name)"
    )


def ask_replicas(name: str, partner: ServedConfig, seconds: float = 30.0) -> list[Served]:
    """What each server of a frozen policy says that it serves, within so many seconds. Raises ConfigError, also where
    they differ, and InferenceError.
    """
    what = f"{name}.base_url"
    each = (partner.model_copy(update={"base_url": url}) for url in partner.each_url)
    # At the start somebody may be watching: a wrong URL should not look like a long wait.
    handshake = RetryPolicy(deadline=seconds, attempt=seconds, attempts=None, cuts_last=True)
    clients = [_client(what, one, handshake) for one in each]
    return at_once(ask_servers(clients, partner.model, what=what))


def _client(what: str, served: ServedConfig, retry_policy: RetryPolicy, **more: Any) -> Client:
    """`what` is the setting of its URL, in messages."""
    token = secret(served.api_key_env, what.replace("base_url", "api_key_env"))
    return Client(*served.each_url, what=what, retry_policy=retry_policy, token=token, **more)


def _max_length(config: RunConfig, limits: RolloutLimits) -> int:
    return min(config.model.max_length, limits.max_response + (limits.max_prompt or 0))


def weight_server(model: ModelConfig, codec: ChatCodec, **options: Any) -> ServedModel:
    """What asks the vLLM of `vllm_server` for turns. Raises ConfigError where no vLLM answers as one."""
    server = ServedConfig(base_url=f"{vllm_base(model)}/v1")
    connect = partial(_client, "model.vllm_url", server, SERVER_RETRIES)
    (served,) = at_once(ask_servers([connect()], None, what="model.vllm_url"))
    return ServedModel(connect, served, codec, **options)


def vllm_base(model: ModelConfig) -> str:
    """Where the vLLM of engine vllm_server is, without the path of its API."""
    assert model.vllm_url is not None, "the config checks it"
    return model.vllm_url.rstrip("/").removesuffix("/v1")


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
        if model.engine == "in_process" and not samples_exactly(model, words):
            self.progress.say(
                f"a vocabulary of {words:,} tokens: this process samples in bfloat16 where the CPU has it, and "
                "rounding may decide a token (model.deterministic: true is exact and about half as fast)"
            )
        return codec

    def codec_of(self, folder: Path, **options: Any) -> Any:
        """How a model in a folder reads and writes in the run's dialect. Raises CheckpointError."""
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
        """Those of model.processes beside this one, for all stages, which begin to load what they need; None on a GPU,
        and for one alone. `close` ends them.

        Raises ConfigError in one of several ranks.
        """
        processes = self.config.model.processes
        if processes == 1:
            return None
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if ranks > 1:
            raise ConfigError(
                f"model.processes ({processes}) spreads the sampling of one process over cores, and {ranks} processes "
                "train here, each of which samples its share; use model.processes: 1"
            )
        on_cpu = sampling_device("auto") == "cpu"
        return SamplingProcesses(processes - 1, self.outages.append) if on_cpu else None

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

    def key(self, iteration: int, stage: Stage) -> Key:
        return (self.config.seed, iteration, stage.value)

    def challenger(self, iteration: int) -> Policy:
        return self._policy(schedule.challenger_of(self.config, iteration))

    def solver(self, iteration: int) -> Policy:
        """S_t as trained in iteration t, promoted or not."""
        return self._policy(schedule.PolicyVersion(Role.SOLVER, iteration))

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
        codec, partner = codec or self.codec, partner or partner_of(self.config, role)
        if partner is None:
            assert policy is not None
            model, named = load_frozen(policy.path), policy.identity
            return in_process_engine(self.context, codec, role, model, identity=named, frozen=True)
        return self._served(policy, role, codec, partner, name or f"partners.{role.value}")

    def _served(
        self, policy: Policy | None, role: Role, codec: ChatCodec, partner: ServedConfig, name: str
    ) -> ServedModel:
        """What samples in a role at a server; it must serve `policy`, and whatever it serves is taken where that is
        None.

        `name` is what named the server. Raises ConfigError for a URL, key or model; InferenceError where no server
        answers; RunMismatchError for other weights.
        """
        config, found = self.config, ask_replicas(name, partner)
        for url, each in zip(partner.each_url, found, strict=True):
            remark = None if policy is None else check_served(each, policy, f"{name}: {url}")
            if remark is not None:
                self._say(remark)
        if role in config.partners.keep_form and any(each.weights is not None for each in found):
            raise ConfigError(
                f"{name}: `scope serve-model` keeps no turn in form (partners.keep_form); serve with a vLLM"
            )
        # Prompts are cut for the shortest context of all servers.
        served = min(found, key=lambda each: each.max_length or sys.maxsize)
        retry_policy = replace(SERVER_RETRIES, connections=config.partners.concurrency)
        return ServedModel(
            lambda: _client(f"{name}.base_url", partner, retry_policy, say=self._say),
            served,
            codec,
            identity=served.identity if policy is None else policy.identity,
            max_length=_max_length(config, self.context.limits(role)),
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            on_outage=self.outages.append,
            encode=codec.encode_reply,
            on_tokens=self.context.activity.sampled,
        )

    def policy_format(self, policy: Policy, role: Role, *, greedy: bool = False) -> PolicyFormat:
        return self.context.policy_format(self.codec, role, policy.identity, greedy=greedy)

    def player(self, policy: Policy, role: Role, *, greedy: bool = False) -> Player:
        """A frozen policy in its role; a greedy one takes the likeliest token."""
        form = self.policy_format(policy, role, greedy=greedy)
        keeps_form = self.keeps_form(policy, role, partner_of(self.config, role))
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
        held = RunExam(self.config, self.pack, self.documents, self.folder, self._say)
        return held.thresholds(judge)

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
