"""Asks the servers that a run names: do they answer, and is what they have that run's."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from scope_selfplay.config import JudgeConfig, PartnerConfig, RunConfig
from scope_selfplay.embedded.world import read_article
from scope_selfplay.engines import ask_replicas, partner_of
from scope_selfplay.errors import OutsideError, ScopeError
from scope_selfplay.judge.endpoint_pool import ask_endpoints
from scope_selfplay.preflight.checks import InputCheck, State
from scope_selfplay.schemas import Document, Role
from scope_selfplay.search import ask_retriever

T = TypeVar("T")

_ASKED = 8
"""Documents that a retriever is asked for."""
_READ_BY_RULE = 50
"""Documents that the embedded judge is tried on."""


def check_servers(config: RunConfig, documents: Sequence[Document]) -> Iterator[InputCheck]:
    """Retriever, judge and partners; nothing for what runs in this process and needs nobody."""
    if config.search.url is not None and documents:
        yield _answered("retriever", partial(_retriever, config, documents))
    yield _answered("judge", partial(_judge, "judge", config.judge, documents))
    if config.judge.evaluate:
        yield _answered(
            "deciding judge", lambda: _judge("deciding judge", config.judge.deciding[0], documents)
        )
    for role in Role:
        partner = partner_of(config, role)
        if partner is not None:
            yield _answered(f"partner {role.value}", partial(_partner, config, role, partner))


def _answered(what: str, check: Callable[[], InputCheck]) -> InputCheck:
    try:
        return check()
    except ScopeError as error:
        return InputCheck(what, State.STOP, str(error), is_outside=isinstance(error, OutsideError))


def _retriever(config: RunConfig, documents: Sequence[Document]) -> InputCheck:
    """An index of other passages finds nothing of what tasks are about; more passages than the run's are fine."""
    found = _run(ask_retriever(config.search, documents, _ASKED))
    there = f"{config.search.url} answers with {found.record.rows:,} passages"
    if found.is_same:
        return InputCheck("retriever", State.OK, f"{there}, those of the run's {len(documents):,} documents")
    there += f"; {found.found} of {found.asked} of the run's {len(documents):,} documents were found by their own text"
    if found.found == found.asked:
        return InputCheck("retriever", State.OK, there)
    command = "build CONFIG INDEX" if config.search.engine.name == "scope" else "documents CONFIG LINES"
    advice = f"index the documents as the run cuts them: `scope index {command}`"
    return InputCheck("retriever", State.WARNING if found.found else State.STOP, there, advice)


def _judge(what: str, settings: JudgeConfig, documents: Sequence[Document]) -> InputCheck:
    match settings.kind:
        case "model":
            models = _run(ask_endpoints(settings))
            return InputCheck(what, State.OK, f"{', '.join(models)} answers")
        case "lexical" if documents and not any(
            read_article(document.text) for document in documents[:_READ_BY_RULE]
        ):
            found = "kind lexical, which reads the embedded world's articles and none of these documents"
            advice = "set judge.kind=model and judge.endpoint.base_url (to rehearse: `scope serve-judge --rehearsal`)"
            return InputCheck(what, State.STOP, found, advice)
    return InputCheck(what, State.OK, f"kind {settings.kind}, in this process")


def _partner(config: RunConfig, role: Role, partner: PartnerConfig) -> InputCheck:
    served, *others = _run(ask_replicas(f"partners.{role.value}", partner, config.partners))
    replicas = f", and {len(others)} more" if others else ""
    return InputCheck(f"partner {role.value}", State.OK, f"{served.model} answers{replicas}")


def _run(asking: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: the caller may or may not have an event loop running."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, asking).result()
