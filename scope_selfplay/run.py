"""An opened run: its config, prompts, corpus, judge and policies, the same for every stage.

Opening checks everything that can be checked before work begins. A run directory belongs to one config and
one prompt pack; another one is refused, nothing is written over.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from scope_selfplay import __version__, schedule
from scope_selfplay.config import JudgeConfig, RunConfig, changed_settings, load_config
from scope_selfplay.corpus import (
    TaskSource,
    assign_sources,
    chunk,
    read_documents,
    read_sample,
    shuffled,
    take_unused,
)
from scope_selfplay.corpus.run_corpus import HELD_OUT, embedded_documents
from scope_selfplay.dialects import spoken_dialect
from scope_selfplay.engines import Checkpoint, in_process_engine, partner_of, policy_format_for, served_engine
from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.errors import ConfigError, CorpusError, OutsideError, RunMismatchError
from scope_selfplay.given_tasks import check_references, read_given_tasks
from scope_selfplay.inference import PolicyModel
from scope_selfplay.judge import Judge, LexicalJudge, VerifierJudge
from scope_selfplay.judge.model import ModelJudge, open_model_judge
from scope_selfplay.judge.prompts import ROLE_OF_PROMPT
from scope_selfplay.pipeline import RunContext
from scope_selfplay.progress import Progress, SilentProgress
from scope_selfplay.prompts import Pack, TaskType, load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.schemas import (
    Document,
    Key,
    Provenance,
    Role,
    rng_from,
    seed_from,
)
from scope_selfplay.search import NothingToSearch, Searcher
from scope_selfplay.store import RunFolder, Stage, read_records, write_atomic, write_records
from scope_selfplay.store.atomic import disk_faults
from scope_selfplay.store.ratings import read_ratings
from scope_selfplay.training.policy import (
    check_context,
    check_policy,
    check_tags,
    load_frozen,
    policy_path,
    weights_hash,
)


@dataclass(frozen=True)
class Policy:
    """A checkpoint and the name it has in records: C_t or S_t."""

    name: str
    path: Path

    @property
    def identity(self) -> str:
        return f"{self.name}-{weights_hash(self.path)}"


@dataclass
class Run:
    """One run on disk. Heavy parts (tokenizer, searcher, models) are opened when first used."""

    config: RunConfig
    folder: RunFolder
    pack: Pack
    progress: Progress = field(default_factory=SilentProgress)
    attempt: int = 1
    outages: list[OutsideError] = field(default_factory=list)
    """Servers that were down for longer than the run waits: what failed with them is not kept."""

    @cached_property
    def base(self) -> Path:
        return policy_path(self.config.model.path)

    @cached_property
    def codec(self) -> Any:
        from scope_selfplay.inference.codec import ChatCodec

        codec = ChatCodec.load(self.base)
        model = self.config.model
        check_tags(codec, spoken_dialect(model.dialect, model.earlier_thinking), where=self.base)
        return codec

    @cached_property
    def documents(self) -> list[Document]:
        """Everything that can be searched: the source documents and those of the held-out tasks."""
        return read_records(self.folder.corpus, Document)

    @cached_property
    def context(self) -> RunContext:
        from scope_selfplay.retriever import open_retriever

        gates = self.pack.domain.gates if self.config.judge.gates is None else self.config.judge.gates
        searcher: Searcher = NothingToSearch()
        if self.documents:
            searcher = open_retriever(self.config.search, self.documents, self.folder, self.outages.append)
        return RunContext(self.config, self.pack, searcher, self._judge(), gates)

    def check_outages(self) -> None:
        """Raises OutsideError when a server was down for too long; call it before results are kept."""
        if self.outages:
            raise self.outages[0]

    def stage_context(self) -> RunContext:
        """The context with an empty tally: every stage keeps its own account of the judge."""
        context = self.context
        if isinstance(context.judge, ModelJudge):
            context.judge.begin_stage()
        return RunContext(context.config, context.pack, context.searcher, context.judge, context.gates)

    def key(self, iteration: int, stage: Stage) -> Key:
        return (self.config.seed, iteration, stage.value)

    def challenger(self, iteration: int) -> Policy:
        return self._policy(schedule.challenger_of(self.config, iteration))

    def solver(self, iteration: int) -> Policy:
        """S_t as trained in iteration t, promoted or not."""
        return self._policy(schedule.solver_of(iteration))

    def promoted(self, iteration: int) -> Policy:
        """The Solver that iteration t + 1 starts from."""
        return self._policy(
            schedule.promoted_solver(iteration, lambda number: read_ratings(self.folder, number).promoted)
        )

    def stopped(self, iteration: int) -> str | None:
        """Why the run ends with this iteration, if its comparison said so and the config still asks for it."""
        message = schedule.stop_message(self.config, iteration, read_ratings(self.folder, iteration))
        if message is None:
            return None
        return (
            f"{message}; to go on all the same, give the same command with --set compare.stop=never --set "
            "compare.patience=null"
        )

    def _policy(self, version: schedule.PolicyVersion) -> Policy:
        return Policy(version.name, version.checkpoint(self.folder) or self.base)

    def engine(self, policy: Policy, role: Role) -> PolicyModel:
        """What samples from a frozen policy: the partner of its role, or an engine in this process."""
        if partner_of(self.config, role) is None:
            model, say = load_frozen(policy.path, self.config.model.device), self.progress.say
            return in_process_engine(
                self.context, self.codec, role, model, identity=policy.identity, frozen=True, say=say
            )
        checkpoint = Checkpoint(policy.identity, weights_hash(policy.path), policy.path)
        return served_engine(
            self.context, self.codec, role, checkpoint, on_outage=self.outages.append, say=self.progress.say
        )

    def policy_format(self, policy: Policy, role: Role, *, greedy: bool = False) -> PolicyFormat:
        return policy_format_for(self.context, self.codec, role, policy.identity, greedy=greedy)

    def sources(self, iteration: int, stage: Stage, count: int, *, taken: Sequence[str]) -> list[TaskSource]:
        """`count` documents that no stage before has used, with task types and search turns dealt out."""
        held_out = iteration == 0
        pool = [each for each in self.documents if (each.source == HELD_OUT) == held_out] or self.documents
        documents = take_unused(
            shuffled(pool, seed=self.config.seed),
            count=count,
            taken=taken,
            wanted_by=f"iteration {iteration} {stage.value}",
        )
        kinds = {kind.name: kind.weight for kind in _task_types(self.config, self.pack)}
        ratio = self.config.tasks.search_turns or self.pack.domain.search_turns
        return assign_sources(documents, kinds, rng_from(*self.key(iteration, stage), "prompts"), ratio=ratio)

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

    def _judge(self) -> Judge:
        match self.config.judge.kind:
            case "lexical":
                return LexicalJudge(self.documents)
            case "verifier":
                return VerifierJudge()
            case "model":
                return open_model_judge(
                    self.config.judge, self.pack, seed=self.config.seed, folder=self.folder.path
                )


def open_run(
    config: RunConfig,
    root: Path,
    progress: Progress,
    *,
    packs: Path | None = None,
    attempt: int = 1,
    record: bool = True,
) -> Run:
    """Open a run directory, or begin a new one. Raises UserError before anything is written.

    `packs` is a folder of prompt packs that goes before those that ship: on a cluster, the mounted ones.
    `attempt` is noted in the manifests of the stages that this opening finishes. Without `record`, the run's
    own `run.yaml` stays as it is: a stage Job is told the addresses of servers that end with it.
    """
    pack = with_judge_prompts(load_pack(pack_path(config.domain, packs)), config.judge, packs=packs)
    _check_switches(config, pack)
    folder = RunFolder(root / config.name)
    base = policy_path(config.model.path)
    if folder.config.exists():
        before = _begun_with(folder)
        _check_same(folder, before, config, pack)
        check_context(base, config)
        # How far the run goes and where it runs may have changed.
        if record and before != config:
            _write_config(folder, config)
    else:
        _check_empty(folder)
        check_policy(base, config)
        if config.corpus.sample is not None:
            progress.say(f"drawing {config.corpus.sample} documents out of {config.corpus.path}")
        _begin(folder, config, pack, read_corpus(config, pack))
    return Run(config, folder, pack, progress, attempt)


def with_judge_prompts(pack: Pack, config: JudgeConfig, *, packs: Path | None = None) -> Pack:
    """The pack, with the judge's texts of `judge.prompts` where it has none; what a run keeps and hashes."""
    if config.kind != "model":
        return pack
    lacking = [role for role in ROLE_OF_PROMPT if role not in pack.roles]
    if not lacking:
        return pack
    other = load_pack(pack_path(config.prompts, packs))
    borrowed = [prompt for prompt in other.prompts if prompt.role in lacking]
    return Pack(domain=pack.domain, prompts=(*pack.prompts, *borrowed))


def _task_types(config: RunConfig, pack: Pack) -> list[TaskType]:
    """Those that the config names, enabled by the pack or not; else all that the pack enables."""
    named = config.tasks.types
    return [
        kind for kind in pack.domain.task_types if (kind.enabled if named is None else kind.name in named)
    ]


def _check_switches(config: RunConfig, pack: Pack) -> None:
    """Settings that fit each other but not this pack or this version."""
    known = [kind.name for kind in pack.domain.task_types]
    for name in config.tasks.types or ():
        if name not in known:
            raise ConfigError(
                f"tasks.types: found {name!r}; the {pack.domain.name} pack has {', '.join(known)}"
            )
    if not _task_types(config, pack):
        raise ConfigError(
            f"tasks.types: no task type is left; the {pack.domain.name} pack has {', '.join(known)}"
        )
    if config.corpus.path == "none":
        _check_without_corpus(config)
    given = None if config.solver.tasks is None else read_given_tasks(config.solver.tasks)
    check_references(config.solver, given)
    if config.compare.given is not None:
        read_given_tasks(config.compare.given, "compare.given")


def _check_without_corpus(config: RunConfig) -> None:
    """A run without documents makes no tasks and searches nothing. Raises ConfigError with what is missing."""
    wanted = {
        "solver.tasks": config.solver.tasks is not None,
        "compare.given": config.compare.given is not None,
        "challenger.frozen=true": config.challenger.frozen,
        "solver.max_search_turns=0": config.solver.max_search_turns == 0,
    }
    lacking = [name for name, is_set in wanted.items() if not is_set]
    if lacking:
        raise ConfigError(
            f"corpus.path: none leaves nothing to write tasks about and nothing to search; set {', '.join(lacking)}, "
            "or give documents"
        )


def _begun_with(folder: RunFolder) -> RunConfig:
    """The config of a run directory. Raises ConfigError where it was emptied: no setting would be the run's own."""
    if not folder.config.read_bytes().strip(b"\0 \t\r\n"):
        raise ConfigError(
            f"{folder.config}: is empty, expected the settings that the run began with; restore the file, or use "
            "another --name"
        )
    return load_config(folder.config)


def _check_same(folder: RunFolder, before: RunConfig, config: RunConfig, pack: Pack) -> None:
    if before.hash != config.hash:
        keys = ", ".join(changed_settings(before, config))
        raise RunMismatchError(
            f"{folder.path}: belongs to another config (changed: {keys}); use another --name, or the config in "
            f"{folder.config}"
        )
    kept = load_pack(folder.prompts)
    if kept.hash != pack.hash:
        raise RunMismatchError(
            f"{folder.path}: was begun with prompts {kept.hash}, found {pack.hash}; use another --name, or the "
            f"pack in {folder.prompts}"
        )


def _check_empty(folder: RunFolder) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise RunMismatchError(
            f"{folder.path}: is a file, a run needs a folder; use another --name or --root"
        )
    if folder.beginning.exists() or not folder.path.exists():
        return
    if any(not each.name.startswith(".") for each in folder.path.iterdir()):
        raise RunMismatchError(
            f"{folder.path}: has files but no run.yaml, so it is no run directory; use another --name or --root"
        )


def _begin(folder: RunFolder, config: RunConfig, pack: Pack, documents: Sequence[Document]) -> None:
    """Write what a run starts from; `run.yaml` last, so that a run which has it is whole."""
    with disk_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.beginning.touch()
        shutil.rmtree(folder.prompts, ignore_errors=True)
        folder.prompts.mkdir()
    for name, text in pack.files().items():
        write_atomic(folder.prompts / name, text)
    write_records(folder.corpus, documents)
    _write_config(folder, config)
    folder.beginning.unlink()


def _write_config(folder: RunFolder, config: RunConfig) -> None:
    write_atomic(folder.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def read_corpus(config: RunConfig, pack: Pack) -> list[Document]:
    """The documents that a run of this config begins with, chunked; those of the held-out tasks are marked."""
    base = policy_path(config.model.path)
    settings = config.corpus
    if settings.path == "none":
        return []
    if settings.path == "embedded":
        return embedded_documents(config.seed, settings)
    reader = settings.reader or pack.domain.corpus_reader
    path = Path(settings.path)
    if settings.sample is None:
        read = read_documents(path, reader)
    else:
        read = read_sample(path, reader, settings.sample, seed=config.seed)
    documents = _chunked(read, config, base)
    if settings.held_out_path is None:
        return documents
    held_out = _chunked(read_documents(Path(settings.held_out_path), reader), config, base)
    both = {each.id for each in documents} & {each.id for each in held_out}
    if both:
        raise CorpusError(f"{settings.held_out_path}: the id {min(both)!r} is also in {settings.path}")
    return documents + [each.model_copy(update={"source": HELD_OUT}) for each in held_out]


def _chunked(documents: Sequence[Document], config: RunConfig, base: Path) -> list[Document]:
    from scope_selfplay.inference.codec import ChatCodec

    tokenizer = ChatCodec.load(base).tokenizer
    return [
        piece
        for document in documents
        for piece in chunk(
            document,
            max_tokens=config.corpus.chunk_tokens,
            encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            decode=tokenizer.decode,
        )
    ]


def training_seed(run: Run, iteration: int, stage: Stage) -> int:
    return seed_from(*run.key(iteration, stage), "trainer")
