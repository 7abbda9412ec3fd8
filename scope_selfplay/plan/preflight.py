"""All lines of the preflight table for one run, here or, as far as that is known, on a cluster."""

import math
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scope_selfplay.base.errors import ConfigError, Finding, OutsideError, ScopeError, State, raise_for_stops
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import DEFAULT_GATES, Document, Role
from scope_selfplay.config.base import ServedConfig
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.run import ARTICLES, HELD_OUT_ARTICLES, RunConfig
from scope_selfplay.corpus.read import reserves_pages, survey
from scope_selfplay.corpus.screen import page_by_page, page_of, shuffled
from scope_selfplay.corpus.world import HELD_OUT, read_article
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.judge.endpoint import ask_endpoints
from scope_selfplay.net.loops import at_once
from scope_selfplay.plan.load import ResourcePlan, make_plan
from scope_selfplay.plan.size import Assumptions
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.run.begin import LONGEST_CHUNK, short_share
from scope_selfplay.run.exam import exam_before, what_fails, what_is_in_doubt
from scope_selfplay.run.run import ask_replicas, check_served, partner_of
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.search.searcher import ask_retriever
from scope_selfplay.store.folder import Policy, RunFolder, Stage


def check_estimate(
    config: RunConfig, gates: int, root: Path | None, short: float | None = None
) -> list[Finding]:
    """Disk below `root`, where that is here; calls and hours."""
    try:
        plan = make_plan(config, gates=gates, assumptions=Assumptions(), short=short)
    except ConfigError as error:
        return [Finding("calls and time", f"not known ({error})", State.WARNING, "see `scope plan`")]
    return [*([_disk(plan, root)] if root is not None else []), _calls(plan)]


def _disk(plan: ResourcePlan, root: Path) -> Finding:
    place = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 2**30
    needed, there = (f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" for gib in (plan.volume_gib, free))
    advice = "make room, give another --root, or a larger save_every; `scope plan` shows it by stage"
    found = f"{needed} at most, {there} free in {place}"
    if free >= plan.volume_gib:
        return Finding("disk", found, State.OK)
    return Finding("disk", found, State.WARNING, advice, is_outside=True)


def _calls(plan: ResourcePlan) -> Finding:
    stages = (*plan.once, *plan.stages)
    rollouts = sum(stage.times * (stage.challenger_rollouts + stage.solver_rollouts) for stage in stages)
    calls = sum(stage.times * stage.judge_calls for stage in stages)
    found = f"about {rollouts:,} rollouts and {calls:,} judge calls"
    if not plan.is_small:
        found += f", {plan.gpu_hours:,.0f} GPU hours of an H100 (nothing of it was measured)"
    return Finding("calls and time", found, State.OK)


WHAT = "documents"


@dataclass(frozen=True)
class DocumentNeed:
    """`count`: for its target if every document gives a task. Below `least` the stage ends in an error."""

    iteration: int
    stage: Stage
    count: int
    least: int
    setting: str

    @property
    def name(self) -> str:
        if self.iteration == 0:
            return "held-out tasks"
        verb = "train the Challenger" if self.stage is Stage.CHALLENGER else "make tasks"
        return f"iteration {self.iteration} {verb}"


@dataclass(frozen=True)
class Pool:
    """How many documents there are; `held_out` is None where held-out tasks are written from the others."""

    documents: int
    held_out: int | None = None
    kin: int = 0
    """Documents of the pages of held-out tasks, beside those that these are written from."""


def document_needs(config: RunConfig) -> list[DocumentNeed]:
    """In the order in which stages take them."""
    needs, challenger = [], config.challenger
    for iteration, stage in stages_of(config):
        if stage is Stage.CHALLENGER:
            count, setting = challenger.steps * challenger.batch, "challenger.steps x challenger.batch"
            needs.append(DocumentNeed(iteration, stage, count, count, setting))
        elif stage is Stage.TASKS and iteration > 0:
            target = config.tasks.target
            least = config.solver.batch
            setting = "tasks.target" if target >= least else "solver.batch"
            needs.append(DocumentNeed(iteration, stage, max(target, least), least, setting))
        elif stage is Stage.TASKS and config.held_out is None:
            needs.append(DocumentNeed(0, stage, config.compare.tasks, 1, "compare.tasks"))
    return needs


def check_documents(config: RunConfig, pool: Pool) -> Finding:
    """Stops a run that runs out even if every document gives a task; warns of one that probably will."""
    needs, assumed = document_needs(config), Assumptions()
    if not needs:
        return Finding(WHAT, f"{pool.documents:,}, and no stage writes tasks from them", State.OK)
    listed = ", ".join(f"{need.name} {need.count:,}" for need in needs)
    shown = f"{pool.documents:,}"
    shown += f" and {pool.held_out:,} for held-out tasks" if pool.held_out is not None else ""
    shown += f", {pool.kin:,} of them of held-out pages (corpus.hold_out)" if pool.kin else ""
    short = _first_shortage([(need, need.count, need.least) for need in needs], pool)
    if short is not None:
        need, least, left = short
        found = f"{shown}; {need.name} needs {least:,} and would find {left:,} (needed: {listed})"
        return Finding(WHAT, found, State.STOP, _advice(needs, pool))
    expected = []
    for need in needs:
        share = assumed.acceptance if need.iteration else assumed.gates_passed
        count = need.count if need.stage is Stage.CHALLENGER else math.ceil(need.count / share)
        expected.append((need, count, count))
    short = _first_shortage(expected, pool)
    if short is not None:
        need, count, left = short
        share = assumed.acceptance if need.iteration else assumed.gates_passed
        may = f"{need.name} may use {count:,} (if {share:.0%} of its tasks are kept)"
        found = f"{shown}; {may} and would find {left:,} (needed: {listed})"
        return Finding(WHAT, found, State.WARNING, f"{_advice(needs, pool)}; or go on with fewer tasks")
    total = sum(need.count for need in needs)
    return Finding(WHAT, f"{shown}; {total:,} needed if every one gives a task ({listed})", State.OK)


def _first_shortage(
    needs: Sequence[tuple[DocumentNeed, int, int]], pool: Pool
) -> tuple[DocumentNeed, int, int] | None:
    """Of needs with what they take and the least that will do: the first for which less is left, and how much is."""
    left = {True: pool.held_out or 0, False: pool.documents - pool.kin}
    for need, count, least in needs:
        own = need.iteration == 0 and pool.held_out is not None
        if left[own] < least:
            return need, least, left[own]
        left[own] -= min(left[own], count)
    return None


def _advice(needs: Sequence[DocumentNeed], pool: Pool) -> str:
    taken = [need for need in needs if need.iteration > 0 or pool.held_out is None]
    missing = sum(need.count for need in taken) - pool.documents + pool.kin
    settings = ", ".join(dict.fromkeys(need.setting for need in taken))
    more = f"add {missing:,} documents or more" if missing > 0 else "add documents"
    return f"{more}, or lower {settings} or iterations"


_ASKED = 8
"""Documents that a retriever is asked for."""
_REACHED = 4.0
"""Seconds in which a server is to answer that it is there; its work may take longer."""
_READ_BY_RULE = 50
"""Documents that the embedded judge is tried on."""


def check_servers(
    config: RunConfig, documents: Sequence[Document], start: Policy | None = None
) -> list[Finding]:
    """Retriever, judge and partners, asked at the same time; nothing for what runs here and needs nobody. `start`: the
    weights that partners are to serve.
    """
    asked: dict[str, Callable[[], Finding]] = {"judge": partial(_judge, "judge", config.judge, documents)}
    if config.search.url is not None and documents:
        asked = {"retriever": partial(_retriever, config, documents), **asked}
    if config.judge.evaluate:
        asked["deciding judge"] = partial(_judge, "deciding judge", config.judge.deciding[0], documents)
    for role in Role:
        if (partner := partner_of(config, role)) is not None:
            asked[f"partner {role.value}"] = partial(_partner, role, partner, start)
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(_answered, asked, asked.values()))


def _answered(what: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except ScopeError as error:
        return Finding(what, str(error), State.STOP, is_outside=isinstance(error, OutsideError))


def _retriever(config: RunConfig, documents: Sequence[Document]) -> Finding:
    """An index of other passages finds nothing of what tasks are about; more passages than the run's are fine."""
    found = at_once(ask_retriever(config.search, documents, _ASKED, _REACHED))
    there = f"{config.search.url} answers with {found.record.rows:,} passages"
    if found.is_same:
        return Finding("retriever", f"{there}, those of the run's {len(documents):,} documents", State.OK)
    there += f"; {found.found} of {found.asked} of the run's {len(documents):,} documents were found by their own text"
    if found.found == found.asked:
        return Finding("retriever", there, State.OK)
    command = "documents CONFIG LINES" if config.search.engine else "build CONFIG INDEX"
    advice = f"index the documents as the run cuts them: `scope index {command}`"
    return Finding("retriever", there, State.WARNING if found.found else State.STOP, advice)


def _judge(what: str, settings: JudgeConfig, documents: Sequence[Document]) -> Finding:
    match settings.kind:
        case "model":
            models = at_once(ask_endpoints(settings, _REACHED))
            return Finding(what, f"{', '.join(models)} answers", State.OK)
        case "lexical" if documents and not any(
            read_article(document.text) for document in documents[:_READ_BY_RULE]
        ):
            found = "kind lexical, which reads the embedded world's articles and none of these documents"
            advice = "set judge.kind=model and judge.endpoint.base_url (to rehearse: `scope serve-judge --rehearsal`)"
            return Finding(what, found, State.STOP, advice)
    return Finding(what, f"kind {settings.kind}, in this process", State.OK)


def _exam(config: RunConfig, pack: Pack, documents: Sequence[Document], root: Path) -> Iterator[Finding]:
    """What the judge can be asked: the exam of a run that is there, else one is held for it."""
    try:
        exam = exam_before(config, pack, documents, root, lambda text: None)
    except ScopeError as error:
        yield Finding("judge's exam", str(error), State.STOP, is_outside=isinstance(error, OutsideError))
        return
    if exam is None:
        return
    fails, doubts = what_fails(exam), what_is_in_doubt(exam)
    more = f"`scope judge exam {root / config.name}` shows each question"
    if fails:
        state = State.STOP if config.judge.exam == "stop" else State.WARNING
        yield Finding("judge's exam", fails, state, more)
    if doubts:
        yield Finding("judge's exam", doubts, State.WARNING, "" if fails else more)
    if not fails and not doubts:
        asked = sum(each.asked for each in exam.questions.values())
        passed = f"passed: {len(exam.questions)} questions, {asked} judgements"
        yield Finding("judge's exam", f"{passed}; {more}", State.OK)


def _partner(role: Role, partner: ServedConfig, start: Policy | None) -> Finding:
    served, *others = found = ask_replicas(f"partners.{role.value}", partner, _REACHED)
    for url, each in zip(partner.each_url, found, strict=True):
        if start is not None:
            check_served(each, start, f"partners.{role.value}: {url}")
    replicas = f", and {len(others)} more" if others else ""
    return Finding(f"partner {role.value}", f"{served.model} answers{replicas}", State.OK)


_SMALL_CHUNK = 128
"""Tokens of text in which few documents say anything whole."""


def examine(
    config: RunConfig, pack: Pack, documents: Sequence[Document], root: Path, *, serves: bool = False
) -> list[Finding]:
    """`documents` are those that the run begins with, cut to size; a run that `serves` will start its servers."""
    gates = pack.domain.gates if config.judge.gates is None else config.judge.gates
    # Partners of a run that goes on serve what it has trained.
    is_new = not RunFolder(root / config.name).config.exists()
    start = Policy("S_0", policy_path(config.model.path)) if is_new else None
    return [
        *_files(config, pack),
        *([check_documents(config, pool_of(documents, config))] if documents else []),
        *budgets(config),
        *(servers := [] if serves else check_servers(config, documents, start)),
        # A judge that is down was told of.
        *(
            _exam(config, pack, documents, root)
            if not serves and all(each.state is not State.STOP for each in servers)
            else []
        ),
        *check_estimate(config, len(gates), root, short_share(config, pack)),
    ]


def examine_before_begin(
    config: RunConfig,
    pack: Pack,
    documents: Sequence[Document],
    root: Path,
    progress: Progress,
    *,
    serves: bool = False,
) -> None:
    """For a run that is about to begin: says what is worth knowing. Raises ConfigError or OutsideError for a stop."""
    checks = examine(config, pack, documents, root, serves=serves)
    raise_for_stops(checks)
    for check in checks:
        if check.state is State.WARNING:
            progress.say(f"WARNING: {check}")
        elif check.where in ("files", WHAT, "calls and time"):
            progress.say(str(check))


def examine_for_cluster(config: RunConfig) -> list[Finding]:
    """What is known of a cluster's run from elsewhere, without its documents, model and servers."""
    checks = [check for check in budgets(config) if check.state is not State.OK]
    documents = unread_documents(config, "is on the run's volume and not counted")
    gates = DEFAULT_GATES if config.judge.gates is None else config.judge.gates
    return [*checks, *([documents] if documents else []), *check_estimate(config, len(gates), None)]


def unread_documents(config: RunConfig, why: str) -> Finding | None:
    """What is known of a run's documents without reading them; None where it has none."""
    path = config.corpus.path
    if path == "none":
        return None
    if path == "embedded":
        return check_documents(config, Pool(config.corpus.sample or ARTICLES, HELD_OUT_ARTICLES))
    total = sum(need.count for need in document_needs(config))
    return Finding(WHAT, f"{total:,} are needed if every one gives a task; {path} {why}", State.OK)


def pool_of(documents: Sequence[Document], config: RunConfig) -> Pool:
    held_out = sum(document.source == HELD_OUT for document in documents)
    kin = 0
    if reserves_pages(config, documents):
        first = page_by_page(shuffled(documents, seed=config.seed))[: config.compare.tasks]
        pages = {page_of(document.id) for document in first}
        kin = sum(page_of(document.id) in pages for document in documents) - len(first)
    return Pool(len(documents) - held_out, held_out or None, kin)


def budgets(config: RunConfig) -> Iterator[Finding]:
    """Tokens of prompt, response and context against each other."""
    room = config.model.max_length
    for role, settings in (("challenger", config.challenger), ("solver", config.solver)):
        wanted = settings.max_prompt + settings.max_response
        found = (
            f"prompt {settings.max_prompt:,} + response {settings.max_response:,} tokens, context {room:,}"
        )
        if wanted <= room:
            yield Finding(f"{role} budget", found, State.OK)
            continue
        cut = f"{found}: a rollout ends after {room - settings.max_prompt:,} tokens of its response"
        advice = f"raise model.max_length to {wanted:,}, or lower {role}.max_response"
        yield Finding(f"{role} budget", cut, State.WARNING, advice)
    tools, turns = config.search.max_tokens, config.solver.max_search_turns
    if turns and tools >= config.solver.max_response:
        found = (
            f"a search result may have {tools:,} tokens, a Solver's response {config.solver.max_response:,}"
        )
        advice = "lower search.max_tokens or raise solver.max_response"
        yield Finding("search budget", found, State.WARNING, advice)
    chunk = config.corpus.chunk_tokens
    if chunk is not None and chunk < min(_SMALL_CHUNK, LONGEST_CHUNK):
        found = f"documents are cut to {chunk} tokens, title included"
        advice = "raise corpus.chunk_tokens, and challenger.max_prompt with it"
        yield Finding("chunks", found, State.WARNING, advice)


def _files(config: RunConfig, pack: Pack) -> Iterator[Finding]:
    """What of a folder is read and what is not."""
    path = Path(config.corpus.path)
    if config.corpus.path in ("embedded", "none") or not path.is_dir():
        return
    found = survey(path, pack.domain.corpus_reader)
    left, what = bool(found.skipped), f"{found}; `scope documents {shlex.quote(str(path))}` says more"
    advice = "convert or move what should be read" if left else ""
    yield Finding("files", what, State.WARNING if left else State.OK, advice)
