"""The directory of a run: what is checked before work begins, and what a new run writes into it.

A run directory belongs to one config and one prompt pack; another one is refused, and nothing is overwritten.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scope_selfplay.base.errors import ConfigError, PromptError, RunMismatchError, ScopeError, StorageError
from scope_selfplay.base.sampling import Message, TextCodec
from scope_selfplay.base.terminal import Progress, scope_command
from scope_selfplay.base.text import frame_tokens, shown
from scope_selfplay.base.values import Document
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig, changed_settings
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.corpus.read import read_run_corpus, survey
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.dialects.families import dialect
from scope_selfplay.evaluation.benchmarks import load_benchmark
from scope_selfplay.inference.checkpoints import check_context, check_policy, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.pack import JudgeKind, Pack, TaskType
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.run.candidate import challenger_prompts
from scope_selfplay.run.exam import take_exam
from scope_selfplay.run.given import EMBEDDED, check_references, check_rubrics, given_files, read_given_tasks
from scope_selfplay.run.run import Run
from scope_selfplay.run.schedule import promotion_warning
from scope_selfplay.store.files import disk_faults, point_at, read_records, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage

JUDGE_PACK = "wikipedia"
"""The pack whose judge prompts those have that lack their own."""
LONGEST_CHUNK = 700
"""Tokens of a chunk where the prompt leaves room for more."""

_SEAM = 8
"""Tokens that a text may need more inside a prompt than alone."""

_SMALLEST = 32


def chunk_size(config: RunConfig, pack: Pack, kinds: Sequence[TaskType], codec: TextCodec) -> int:
    """The tokens of a chunk, title included: `corpus.chunk_tokens`, else what fits. Raises ConfigError."""
    if config.solver.tasks is not None and config.held_out is not None:
        # No Challenger ever sees the documents.
        return config.corpus.chunk_tokens or LONGEST_CHUNK
    prompt = prompt_tokens(config, pack, kinds, codec) + _SEAM
    given, limit = config.corpus.chunk_tokens, config.challenger.max_prompt
    room = limit - prompt
    if given is None and room >= _SMALLEST:
        return min(LONGEST_CHUNK, room)
    if given is not None and given <= room:
        return given
    chunk = f"a chunk of corpus.chunk_tokens={given}" if given else "a document"
    advice = f"set corpus.chunk_tokens to at most {room}, or " if given and room >= _SMALLEST else ""
    raise ConfigError(
        f"{chunk} does not fit into the Challenger's prompt: challenger.max_prompt is {limit}, and the prompt takes "
        f"{prompt} tokens without a document; {advice}raise challenger.max_prompt to {prompt + (given or _SMALLEST)}"
    )


def prompt_tokens(config: RunConfig, pack: Pack, kinds: Sequence[TaskType], codec: TextCodec) -> int:
    """The tokens of the Challenger's longest prompt, over task types and search turns, without a document."""
    syntax = dialect(config.model.dialect, config.model.earlier_thinking).search_syntax
    turns = config.tasks.search_turns or pack.domain.search_turns
    # With the longest name of a language.
    empty = Document(id="", title="", text="", metadata={"language": "xx-Hant-TW"})
    sources = [TaskSource(empty, kind.name, count) for kind, count in product(kinds, turns)]
    openings = [challenger_prompts(pack, syntax, source).opening for source in sources]
    return max(len(codec.encode_prompt([Message("user", opening)])) for opening in openings)


def open_run(
    config: RunConfig,
    root: Path,
    progress: Progress,
    *,
    packs: Path | None = None,
    attempt: int = 1,
    record: bool = True,
    examine: Callable[[RunConfig, Pack, Sequence[Document], Path, Progress], None] | None = None,
    folder: RunFolder | None = None,
) -> Run:
    """Open a run directory that belongs to this config, or begin a new one, with the prompts that the run keeps in it.

    `packs` is a folder of prompt packs that goes before those that ship: on a cluster, the mounted ones. `attempt` is
    noted in the manifests of the stages that this opening finishes. Without `record` the `run.yaml` of an existing run
    stays as it is: a stage Job is told the addresses of servers that end with it. A `folder` that is given holds a run,
    whatever it is called: that goes on with the prompts in it. `examine` looks at a run that is to begin before its
    folder is made. Raises UserError before anything is written, and what `examine` raises.
    """
    pack = check_inputs(config, root, packs, goes_on=folder)
    if (warning := promotion_warning(config)) is not None:
        progress.say(warning)
    folder = folder or RunFolder(root / config.name)
    base = policy_path(config.model.path, folder.base)
    if folder.config.exists():
        if not folder.config.read_bytes().strip(b"\0 \t\r\n"):
            # Without settings of its own, another config would pass for the run's.
            raise ConfigError(
                f"{folder.config}: is empty, expected the settings that the run began with; restore the file, or use "
                "another --name"
            )
        before = load_config(folder.config)
        _check_same(folder, before, config, pack)
        check_context(base, config)
        # How far the run goes and where it runs may have changed.
        if record and before != config:
            write_config(folder, config)
    else:
        _check_empty(folder)
        check_policy(base, config)
        if config.corpus.sample is not None and config.corpus.path != "embedded":
            progress.say(f"sampling {config.corpus.sample} documents of {config.corpus.path}")
        documents = run_documents(config, pack, progress)
        if examine is not None:
            examine(config, pack, documents, root, progress)
        _begin(folder, config, pack, documents)
        take_exam(root, folder)
    return Run(config, folder, pack, progress, attempt)


class CorpusChanges(NamedTuple):
    """The ids of documents that are new, have another text, or are gone; a run's documents, and its corpus as it is."""

    new: list[str]
    changed: list[str]
    gone: list[str]
    before: list[Document]
    now: list[Document]

    def __str__(self) -> str:
        return f"{len(self.new):,} documents new, {len(self.changed):,} changed, {len(self.gone):,} gone"


def corpus_changes(folder: RunFolder, config: RunConfig, pack: Pack) -> CorpusChanges:
    """Raises UserError for a corpus that cannot be read any more."""
    before, now = read_records(folder.corpus, Document), run_documents(config, pack)
    old, new = ({each.id: (each.title, each.text) for each in documents} for documents in (before, now))
    changed = [name for name, text in new.items() if old.get(name, text) != text]
    come, gone = ([name for name in one if name not in other] for one, other in ((new, old), (old, new)))
    return CorpusChanges(come, changed, gone, before, now)


def say_changes(run: Run) -> None:
    """Say how its pack and files of tasks have changed, and its corpus, which is read again where something in it is
    younger than the run's documents.
    """
    keeps = "the run keeps its own, another --name begins one with these"
    with suppress(ScopeError, OSError):
        pack = with_judge_prompts(load_pack(pack_path(run.config.domain)), run.config.judge)
        if pack.hash != run.pack.hash:
            run.progress.say(f"{run.config.domain}: other prompts since the run began; {keeps}")
    for setting, file in given_files(run.config).items():
        with suppress(OSError):
            if file.read_bytes() != run.folder.given(setting).read_bytes():
                run.progress.say(f"{setting}: {file} has changed since the run began; {keeps}")
    corpus, reader = run.config.corpus, run.pack.domain.corpus_reader
    paths = [Path(each) for each in (corpus.path, corpus.held_out_path) if each is not None]
    # The run has its documents, whatever has become of what they were read from.
    with suppress(ScopeError, OSError):
        began = run.folder.corpus.stat().st_mtime
        files = [file for path in paths if path.is_dir() for file in survey(path, reader).read]
        # A folder's time is that of the last file that came or went.
        looked_at = {*paths, *files, *(file.parent for file in files)}
        if any(each.stat().st_mtime > began for each in looked_at):
            found = corpus_changes(run.folder, run.config, run.pack)
            compared = (
                number
                for number in run.folder.iterations()
                if run.folder.stage(number, Stage.COMPARE).manifest
            )
            if (last := max(compared, default=None)) is not None:
                place, name = shlex.quote(str(run.folder.path)), f"{run.config.name[:28]}-new"
                fork = f"{scope_command()} fork {place} --after {last} --name {name} --corpus"
                keeps = (
                    f"the run keeps its own; `{fork}` shares its iterations to {last} and goes on with these"
                )
            if any(found[:3]):
                run.progress.say(f"{corpus.path}: since the run began {found}; {keeps}")


def check_inputs(
    config: RunConfig, root: Path, packs: Path | None = None, *, goes_on: RunFolder | None = None
) -> Pack:
    """The prompts of a run whose settings, root and policy's folder are sound: those that it keeps where it `goes_on`,
    or where its pack lies elsewhere now. Raises UserError, StorageError.
    """
    there = goes_on or RunFolder(root / config.name)
    try:
        found = there.prompts if goes_on else pack_path(config.domain, packs)
    except PromptError:
        if not there.config.exists():
            raise
        found = there.prompts
    pack = with_judge_prompts(load_pack(found), config.judge, packs=packs)
    _check_settings(config, pack, there)
    _check_root(root)
    policy_path(config.model.path, there.base)
    return pack


def run_documents(
    config: RunConfig, pack: Pack, progress: Progress | None = None, **left: Any
) -> list[Document]:
    """The documents that a run of this config begins with, cut to size by the policy's tokenizer; `left` as in
    `read_run_corpus`.
    """

    @cache
    def codec() -> ChatCodec:
        return ChatCodec.load(policy_path(config.model.path))

    return read_run_corpus(
        config.corpus,
        pack.domain.corpus_reader,
        config.seed,
        size=lambda: chunk_size(config, pack, task_types_of(config, pack), codec()),
        # As in a prompt, where what looks like a special token is text.
        count=lambda texts: list(codec().counts([shown(text) for text in texts])),
        spare=lambda document: sum(
            frame_tokens(codec().count, text, pack.own_lines(PromptRole.CHALLENGER))
            for text in (document.title, document.text)
        ),
        progress=progress or Progress(),
        **left,
    )


def task_types_of(config: RunConfig, pack: Pack) -> list[TaskType]:
    """The task types that the config names, enabled by the pack or not; else all that the pack enables."""
    named = config.tasks.types
    return [
        kind for kind in pack.domain.task_types if (kind.enabled if named is None else kind.name in named)
    ]


def short_share(config: RunConfig, pack: Pack) -> float:
    """Of the tasks, those whose answers stand in the document."""
    kinds = task_types_of(config, pack)
    return sum(kind.weight for kind in kinds if kind.answer) / (sum(kind.weight for kind in kinds) or 1.0)


def with_judge_prompts(pack: Pack, config: JudgeConfig, *, packs: Path | None = None) -> Pack:
    """The pack, with the judge's texts of `JUDGE_PACK` where it has none; what a run keeps and hashes."""
    lacking = [role for role in ROLE_OF_PROMPT if role not in pack.roles]
    if config.kind != "model" or not lacking:
        return pack
    other = load_pack(pack_path(JUDGE_PACK, packs))
    borrowed = [prompt for prompt in other.prompts if prompt.role in lacking]
    return Pack(domain=pack.domain, prompts=(*pack.prompts, *borrowed))


def _check_settings(config: RunConfig, pack: Pack, there: RunFolder) -> None:
    """Raises ConfigError for settings that fit each other but not this pack."""
    known = [kind.name for kind in pack.domain.task_types]
    for name in config.tasks.types or ():
        if name not in known:
            raise ConfigError(
                f"tasks.types: found {name!r}; the {pack.domain.name} pack has {', '.join(known)}"
            )
    if not task_types_of(config, pack):
        raise ConfigError(
            f"tasks.types: no task type is left; the {pack.domain.name} pack has {', '.join(known)}"
        )
    if config.corpus.path == "none":
        _check_without_corpus(config)
    _check_tools_are_told(config, pack)
    given = None if config.solver.tasks is None else read_given_tasks(config.solver.tasks, kept=there)
    kinds = [kind.name for kind in task_types_of(config, pack) if not kind.answer]
    if given is not None or kinds:
        check_references(config.solver, given, kinds)
    _check_how_answers_are_verified(config.solver, pack)
    check_rubrics(config, given or (), "solver.tasks")
    for asked in config.compare.benchmarks:
        # A missing file shows now, and not after the first training.
        load_benchmark(asked)
    if config.held_out not in (None, EMBEDDED):
        held_out = read_given_tasks(str(config.held_out), "compare.given", there)
        check_rubrics(config, held_out, "compare.given")


def _check_how_answers_are_verified(settings: SolverConfig, pack: Pack) -> None:
    """Raises ConfigError where texts are compared and the Solver is told to box its answer: none would be right."""
    routing = settings.routing
    checks = {
        "solver.reward.check": settings.reward.check if settings.reward.design == "verifier" else None,
        "solver.routing.check": routing.check if routing is not None and routing.by != "rubric" else None,
    }
    solver = next((prompt.body for prompt in pack.prompts if prompt.role is PromptRole.SOLVER), "")
    for name, check in checks.items():
        if check in ("exact", "f1") and "\\boxed" in solver:
            raise ConfigError(
                f"{name}: {check} compares whole texts, and the {pack.domain.name} pack has the Solver box its answer, "
                "so that none would be right; use boxed, or leave it out"
            )


def _check_tools_are_told(config: RunConfig, pack: Pack) -> None:
    """Raises ConfigError where the Solver's prompt says nothing of its tools, and nothing has taught it them."""
    (solver,) = [prompt for prompt in pack.prompts if prompt.role is PromptRole.SOLVER]
    if config.tools and "tools" not in solver.uses and pack.domain.judge is not JudgeKind.LEXICAL:
        raise ConfigError(
            f"tools: the {pack.domain.name} pack's solver.md shows the Solver none; write {{{{ tools }}}} into it, as "
            "prompts/wikipedia/solver.md does"
        )


def _check_without_corpus(config: RunConfig) -> None:
    """A run without documents makes no tasks and searches nothing. Raises ConfigError with what is missing."""
    wanted = {
        "solver.tasks": config.solver.tasks is not None,
        "compare.given": config.held_out is not None,
        "solver.max_search_turns=0": config.solver.max_search_turns == 0,
    }
    lacking = [name for name, is_set in wanted.items() if not is_set]
    if lacking:
        raise ConfigError(
            f"corpus.path: none leaves nothing to write tasks about and nothing to search; set {', '.join(lacking)}, "
            "or give documents"
        )


def _check_root(root: Path) -> None:
    """Raises ConfigError for a root that can hold no folder, StorageError for one that this user may not write."""
    there = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"--root {root}: {there} is a file; give a folder, or a path where one can be made")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(
            f"--root {root}: this user may not write in {there}; change that, or give another folder"
        )


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


def renamed_run(config: RunConfig, root: Path) -> Path | None:
    """The folder in `root` that holds the run of this config under another name, where its own is not there."""
    own = RunFolder(root / config.name).config
    for file in [] if own.exists() else sorted(root.glob("*/run.yaml")):
        with suppress(ScopeError):
            there = load_config(file)
            if (there.name, there.hash) == (config.name, config.hash):
                return file.parent
    return None


def _check_empty(folder: RunFolder) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise RunMismatchError(
            f"{folder.path}: is a file, a run needs a folder; use another --name or --root"
        )
    if folder.beginning.exists() or not folder.path.exists():
        return
    if any(not path.name.startswith(".") for path in folder.path.iterdir()):
        raise RunMismatchError(
            f"{folder.path}: has files but no run.yaml, so it is not a run directory; use another --name or --root"
        )


def _begin(folder: RunFolder, config: RunConfig, pack: Pack, documents: Sequence[Document]) -> None:
    """Write what a run starts from; `run.yaml` last, so that a run which has it is complete."""
    with disk_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.beginning.touch()
        shutil.rmtree(folder.prompts, ignore_errors=True)
        folder.prompts.mkdir()
    for name, text in pack.files().items():
        write_atomic(folder.prompts / name, text)
    write_records(folder.corpus, documents)
    for setting, file in given_files(config).items():
        write_atomic(folder.given(setting), file.read_bytes())
    if (base := Path(config.model.path)).is_dir() and not base.is_absolute():
        # The run may be moved, and gone on with from elsewhere.
        point_at(folder.base, base)
    write_config(folder, config)
    folder.beginning.unlink()


def write_config(folder: RunFolder, config: RunConfig) -> None:
    """`run.yaml`, with every setting."""
    write_atomic(folder.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
