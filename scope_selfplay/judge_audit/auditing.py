"""An audit of a run's judge: which judgements are asked again, of whom, within how many calls; kept as they come."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.config import JudgeConfig, RunConfig, load_config
from scope_selfplay.errors import ConfigError, RecordError
from scope_selfplay.folder_lock import folder_lock
from scope_selfplay.judge import Judge
from scope_selfplay.judge.model import open_model_judge
from scope_selfplay.judge.prompts import comparison_role
from scope_selfplay.judge_audit.asking import WAYS_OF, ask_again
from scope_selfplay.judge_audit.findings import report_of
from scope_selfplay.judge_audit.judgements import Judgement, sample_judgements
from scope_selfplay.keys import seed_from
from scope_selfplay.progress import Progress
from scope_selfplay.prompts import Pack, PromptRole, load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.run import Run
from scope_selfplay.run_directory import with_judge_prompts
from scope_selfplay.schemas import Fault
from scope_selfplay.store import Appender, RunFolder, Stage, write_atomic
from scope_selfplay.store.files import disk_faults
from scope_selfplay.store.judge_checks import AskedAgain, AuditReport, AuditWay, JudgementKind, read_asked
from scope_selfplay.store.reader import RunReader

REWORDED = "reworded"
"""The shipped pack whose judge prompts say the same as those of `wikipedia` in other words."""
_PARTS = {JudgementKind.GRADE: 0.6, JudgementKind.GATE: 0.2, JudgementKind.COMPARISON: 0.2}
"""How the calls of one way are shared."""
_AT_ONCE = 64
_LOCK_TIMEOUT = 5.0


@dataclass(frozen=True)
class Audit:
    """What is asked: at most `sample` calls, rewording by `pack` (the shipped one when None), and of `other`, too."""

    sample: int
    pack: str | None = None
    other: JudgeConfig | None = None


def audit_judge(path: Path, overrides: Sequence[str], audit: Audit, progress: Progress) -> AuditReport:
    """Goes on where an earlier audit was stopped, and pays for no answer twice. Raises JudgeError, ConfigError."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise RecordError(
            f"{path}: not a run folder (it has no {folder.config.name}); give one that `scope run` made"
        )
    run = Run(load_config(folder.config, overrides), folder, load_pack(folder.prompts), progress)
    if run.config.judge.kind == "verifier":
        raise ConfigError(
            "judge.kind is verifier: it compares boxed answers by rule, so there is nothing to ask again"
        )
    judges = _Judges(run, audit)
    with RunReader(path) as reader:
        planned = _planned(reader, run.config, judges.ways, audit.sample)
    if not planned:
        raise RecordError(
            f"{path}: holds no judgement that could be asked again; audit a run that has made tasks or answers"
        )
    with disk_faults(folder.audit):
        folder.audit.mkdir(parents=True, exist_ok=True)
    lock = folder.audit / ".lock"
    with folder_lock(folder.audit, lock, work="auditing", say=progress.say, timeout=_LOCK_TIMEOUT):
        asyncio.run(_ask_all(folder, planned, judges, progress))
        asked = _newest(read_asked(folder))
        report = report_of(asked, judges.own.identity)
        write_atomic(folder.audit / "audit.json", report.model_dump_json(indent=1) + "\n")
    return report


Planned = tuple[Judgement, AuditWay]


def _planned(
    reader: RunReader, config: RunConfig, ways: "Callable[[Judgement], Sequence[AuditWay]]", sample: int
) -> list[Planned]:
    """Every way gets as many calls as any other, as far as there are judgements for it."""
    pools = {kind: sample_judgements(reader, config, kind, sample) for kind in JudgementKind}
    able = {
        way: {kind: [each for each in pool if way in ways(each)] for kind, pool in pools.items()}
        for way in AuditWay
    }
    used = [way for way in AuditWay if any(able[way].values())]
    planned: list[Planned] = []
    for number, way in enumerate(used):
        room = (sample - len(planned)) // (len(used) - number)
        planned += [(judgement, way) for judgement in _shared(able[way], room)]
    return planned


def _shared(pools: dict[JudgementKind, list[Judgement]], room: int) -> list[Judgement]:
    """At most so many judgements of all kinds by their parts; what one kind lacks goes to the others."""
    taken: list[Judgement] = []
    kinds = sorted((kind for kind in pools if pools[kind]), key=lambda kind: len(pools[kind]) / _PARTS[kind])
    for number, kind in enumerate(kinds):
        weight = _PARTS[kind] / sum(_PARTS[each] for each in kinds[number:])
        taken += pools[kind][: round((room - len(taken)) * weight)]
    return taken


class _Judges:
    """Who is asked in which way; each judge is opened when it is first asked, and answers nothing from a cache."""

    def __init__(self, run: Run, audit: Audit) -> None:
        self._run = run
        self._audit = audit
        self._opened: dict[tuple[str, bool], Judge] = {}
        self._second, self._reworded = _rewording(run, audit.pack)

    @property
    def own(self) -> Judge:
        return self._open("own", deciding=False)

    def ways(self, judgement: Judgement) -> list[AuditWay]:
        """Those in which this run's judge can be asked the judgement again."""
        lacking = set()
        if self._audit.other is None:
            lacking.add(AuditWay.ELSEWHERE)
        if _role_of(judgement) not in self._reworded:
            lacking.add(AuditWay.REWORDED)
        return [way for way in WAYS_OF[judgement.kind] if way not in lacking]

    def of(self, judgement: Judgement, way: AuditWay) -> Judge:
        name = way.value if way in (AuditWay.REWORDED, AuditWay.ELSEWHERE) else "own"
        return self._open(name, deciding=judgement.stage is Stage.COMPARE)

    def _open(self, name: str, *, deciding: bool) -> Judge:
        run, settings = self._run, self._run.config.judge
        deciding = deciding and bool(settings.evaluate)
        if (name, deciding) not in self._opened:
            if deciding:
                settings = settings.deciding[0]
            if name == AuditWay.ELSEWHERE and self._audit.other is not None:
                settings = self._audit.other
            pack = self._second if name == AuditWay.REWORDED else run.pack
            self._opened[name, deciding] = self._opened_judge(settings, pack)
        return self._opened[name, deciding]

    def _opened_judge(self, settings: JudgeConfig, pack: Pack) -> Judge:
        if settings.kind != "model":
            return self._run.open_judge(settings)
        fresh = settings.model_copy(update={"cache": None})
        seed = seed_from(self._run.config.seed, "audit")
        pack = with_judge_prompts(pack, settings)
        return open_model_judge(
            fresh, pack, seed=seed, folder=self._run.folder.path, say=self._run.progress.say
        )


def _rewording(run: Run, name: str | None) -> tuple[Pack, frozenset[PromptRole]]:
    """The second pack, and the roles whose prompts in it are others than the run's; none for a judge without prompts.

    The shipped one puts `wikipedia` into other words, and so only those prompts of the run that are from there.
    """
    second = load_pack(pack_path(name or REWORDED))
    if run.config.judge.kind != "model":
        return second, frozenset()
    texts, own = ({prompt.role: prompt.text for prompt in pack.prompts} for pack in (second, run.pack))
    roles = {role for role, text in own.items() if role in texts and texts[role] != text}
    if name is None:
        basis = {prompt.role: prompt.text for prompt in load_pack(pack_path("wikipedia")).prompts}
        roles = {role for role in roles if own[role] == basis.get(role) != texts[role]}
    return second, frozenset(roles)


def _role_of(judgement: Judgement) -> PromptRole:
    if judgement.gate is not None:
        return PromptRole.of_gate(judgement.gate)
    return PromptRole.GRADE if judgement.style is None else comparison_role(judgement.style)


async def _ask_all(
    folder: RunFolder, planned: Sequence[Planned], judges: _Judges, progress: Progress
) -> None:
    settled = {(each.id, each.way, each.by) for each in read_asked(folder) if _is_settled(each)}
    missing = [
        (judgement, way, judge)
        for judgement, way in planned
        if (judgement.id, way, (judge := judges.of(judgement, way)).identity) not in settled
    ]
    progress.begin("ask judgements again", len(planned))
    gate = asyncio.Semaphore(_AT_ONCE)
    with Appender(folder.audit / "asked.jsonl") as file:

        async def ask(judgement: Judgement, way: AuditWay, judge: Judge) -> None:
            async with gate:
                file.append(await ask_again(judgement, way, judge))

        calls = [ask(*each) for each in missing]
        for number, call in enumerate(asyncio.as_completed(calls), start=1):
            await call
            progress.advance(len(planned) - len(missing) + number)
    progress.end(f"{len(missing)} asked")


def _is_settled(each: AskedAgain) -> bool:
    """Whether it is not asked once more: a judge that could not be read has answered, one that was down has not."""
    return each.now is not None or each.fault is Fault.UNREADABLE


def _newest(asked: Iterable[AskedAgain]) -> list[AskedAgain]:
    """One answer of each judge to each question, in an order that no timing changes."""
    found = {(each.id, each.way, each.by): each for each in asked}
    return [found[key] for key in sorted(found)]
