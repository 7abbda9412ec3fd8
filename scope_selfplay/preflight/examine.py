"""All lines of the preflight table for one run, here or, as far as that is known, on a cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from scope_selfplay.challenger_room import LONGEST_CHUNK
from scope_selfplay.config import CorpusConfig, RunConfig
from scope_selfplay.corpus.embedded import HELD_OUT
from scope_selfplay.corpus.survey import survey
from scope_selfplay.gates import DEFAULT_GATES
from scope_selfplay.preflight.checks import InputCheck, State, raise_for_stops
from scope_selfplay.preflight.estimate import check_estimate
from scope_selfplay.preflight.needs import WHAT, Pool, check_documents, document_needs
from scope_selfplay.preflight.servers import check_servers
from scope_selfplay.progress import Progress
from scope_selfplay.prompts import Pack
from scope_selfplay.schemas import Document

_SMALL_CHUNK = 128
"""Tokens of text in which few documents say anything whole."""


def examine(config: RunConfig, pack: Pack, documents: Sequence[Document], root: Path) -> list[InputCheck]:
    """`documents` are those that the run begins with, cut to size."""
    gates = pack.domain.gates if config.judge.gates is None else config.judge.gates
    return [
        *_files(config, pack),
        *([check_documents(config, pool_of(documents))] if documents else []),
        *budgets(config),
        *check_servers(config, documents),
        *check_estimate(config, len(gates), root),
    ]


def examine_before_begin(
    config: RunConfig, pack: Pack, documents: Sequence[Document], root: Path, progress: Progress
) -> None:
    """For a run that is about to begin: says what is worth knowing. Raises ConfigError or OutsideError for a stop."""
    checks = examine(config, pack, documents, root)
    raise_for_stops(checks)
    for check in checks:
        if check.state is State.WARNING:
            progress.say(f"WARNING: {check}")
        elif check.what in ("files", WHAT, "calls and time"):
            progress.say(str(check))


def examine_for_cluster(config: RunConfig) -> list[InputCheck]:
    """What is known of a cluster's run from elsewhere, without its documents, model and servers."""
    corpus, checks = config.corpus, [check for check in budgets(config) if check.state is not State.OK]
    if corpus.path == "embedded":
        checks.append(check_documents(config, embedded_pool(corpus)))
    elif corpus.path != "none":
        total = sum(need.count for need in document_needs(config))
        found = f"{total:,} are needed if every one gives a task; {corpus.path} is on the run's volume and not counted"
        checks.append(InputCheck(WHAT, State.OK, found))
    gates = DEFAULT_GATES if config.judge.gates is None else config.judge.gates
    return [*checks, *check_estimate(config, len(gates), None)]


def embedded_pool(corpus: CorpusConfig) -> Pool:
    return Pool(corpus.embedded_articles, corpus.embedded_held_out)


def pool_of(documents: Sequence[Document]) -> Pool:
    held_out = sum(document.source == HELD_OUT for document in documents)
    return Pool(len(documents) - held_out, held_out or None)


def budgets(config: RunConfig) -> Iterator[InputCheck]:
    """Tokens of prompt, response and context against each other."""
    room = config.model.max_length
    for role, settings in (("challenger", config.challenger), ("solver", config.solver)):
        wanted = settings.max_prompt + settings.max_response
        found = (
            f"prompt {settings.max_prompt:,} + response {settings.max_response:,} tokens, context {room:,}"
        )
        if wanted <= room:
            yield InputCheck(f"{role} budget", State.OK, found)
            continue
        cut = f"{found}: a rollout ends after {room - settings.max_prompt:,} tokens of its response"
        advice = f"raise model.max_length to {wanted:,}, or lower {role}.max_response"
        yield InputCheck(f"{role} budget", State.WARNING, cut, advice)
    tools, turns = config.search.max_tokens, config.solver.max_search_turns
    if turns and tools >= config.solver.max_response:
        found = (
            f"a search result may have {tools:,} tokens, a Solver's response {config.solver.max_response:,}"
        )
        yield InputCheck(
            "search budget", State.WARNING, found, "lower search.max_tokens or raise solver.max_response"
        )
    chunk = config.corpus.chunk_tokens
    if chunk is not None and chunk < min(_SMALL_CHUNK, LONGEST_CHUNK):
        found = f"documents are cut to {chunk} tokens, title included"
        yield InputCheck(
            "chunks", State.WARNING, found, "raise corpus.chunk_tokens, and challenger.max_prompt with it"
        )


def _files(config: RunConfig, pack: Pack) -> Iterator[InputCheck]:
    """What of a folder is read and what is not."""
    path = Path(config.corpus.path)
    if config.corpus.path in ("embedded", "none") or not path.is_dir():
        return
    found = survey(path, config.corpus.reader or pack.domain.corpus_reader)
    yield InputCheck("files", State.WARNING if found.skipped else State.OK, str(found), found.advice)
