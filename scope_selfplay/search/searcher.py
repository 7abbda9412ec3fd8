"""Where evidence comes from: the search protocol, a run's searcher, and how passages are shown to a policy.

    searcher = open_retriever(config.search, documents, folder, on_outage)

A run searches with BM25 over its corpus in this process, or asks a retriever over HTTP. The first opening writes what
is searched into `index.json`; another index later is refused, wherever it is. BM25 over an equal corpus gives the same
passages in this process and from a server, so a run may move between the two.
"""

from base64 import b64encode
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from retrieval.client import HttpSearcher, RefusedError, RemoteSearcher, RetrieverDownError, bm25_searcher
from retrieval.folder import Passages
from scope_selfplay.base.errors import ConfigError, RunMismatchError, SearchError
from scope_selfplay.base.sampling import TextCodec
from scope_selfplay.base.text import frame_tokens, framed, numbers_a_result, shown
from scope_selfplay.base.values import Document, Passage, Truncation, Value
from scope_selfplay.config.base import SearchConfig
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.net.guard import secret
from scope_selfplay.net.loops import PerLoop, at_once
from scope_selfplay.search.engines import ENGINES
from scope_selfplay.store.files import read_value, write_atomic
from scope_selfplay.store.folder import RunFolder

_LONGEST_TITLE = 300
"""Characters: a longer title would take the room of all other results."""
# At the start somebody may be watching: a wrong URL should not look like a long wait.
HANDSHAKE_SECONDS = 30.0
# Characters of a document that it is looked for by.
_QUERY = 200
_CUT = " [...] "
Found = TypeVar("Found")


class Searcher(Protocol):
    @property
    def identity(self) -> str:
        """Names the index and its corpus; stored with every rollout."""
        ...

    async def search(self, query: str, topk: int) -> list[Passage]:
        """The best passages first. Raises SearchError; an empty list means that nothing was found, never a fault."""
        ...

    async def document(self, passage_id: str) -> Document | None:
        """The document that a passage is of; None where there is no such passage. Raises SearchError."""
        raise SearchError("what this run searches gives no whole documents")


class NothingToSearch(Searcher):
    """The searcher of a run without a corpus, whose Solver may not search."""

    identity = "nothing"

    async def search(self, query: str, topk: int) -> list[Passage]:
        raise SearchError("this run has nothing to search (corpus.path is none)")


def show_passages(
    passages: Sequence[Passage], codec: TextCodec, max_tokens: int, truncation: Truncation = Truncation.END
) -> tuple[str, list[Passage]]:
    """The text of a tool response of at most `max_tokens`, and the passages as the policy sees them.

    At the end, the lowest-ranked passage is cut first: documents are added in rank order until the budget is used up.
    In the middle, every passage has an equal share of what those before it have left over, and loses its own middle.
    """
    passages = [_on_one_line(passage) for passage in passages]
    if truncation is Truncation.MIDDLE:
        passages = _without_middles(passages, codec, max_tokens)
    found: list[Passage] = []
    blocks: list[str] = []
    left = max_tokens
    for rank, passage in enumerate(passages, start=1):
        number, text = f"[{rank}] ", shown(passage.text)
        heading = f"{number}{passage.title}: "
        cut = codec.truncate(f"{heading}{text}\n", left - _frame_tokens(passage, codec))
        if len(cut) <= len(heading):
            break
        block = number + framed(cut.rstrip("\n").removeprefix(number), numbers_a_result)
        blocks.append(block)
        if len(cut) <= len(heading) + len(text):
            found.append(passage.model_copy(update={"text": cut[len(heading) :].rstrip("\n")}))
            break
        found.append(passage)
        left -= codec.count(f"{block}\n")
    return "\n".join(blocks) if blocks else "Nothing was found.", found


def _on_one_line(passage: Passage) -> Passage:
    title = " ".join(shown(passage.title[:_LONGEST_TITLE]).split())
    return passage if title == passage.title else passage.model_copy(update={"title": title})


def _frame_tokens(passage: Passage, codec: TextCodec) -> int:
    """What the frame of a passage takes that could pass for another result, or for the prompt."""
    return frame_tokens(codec.count, f"{passage.title}: {passage.text}", numbers_a_result)


def _without_middles(passages: Sequence[Passage], codec: TextCodec, max_tokens: int) -> list[Passage]:
    kept: list[Passage] = []
    for place, passage in enumerate(passages):
        share = max_tokens // (len(passages) - place)
        heading = f"[{len(kept) + 1}] {passage.title}: "
        share -= _frame_tokens(passage, codec)
        text = cut_middle(passage.text, codec, share - codec.count(f"{heading}\n"))
        if text:
            kept.append(passage.model_copy(update={"text": text}))
            max_tokens -= min(share, codec.count(f"{heading}{text}\n"))
    return kept


def cut_middle(text: str, codec: TextCodec, max_tokens: int) -> str:
    """A text of at most `max_tokens`: its beginning and its end where it is longer. Empty where no mark would fit."""
    if codec.count(text) <= max_tokens:
        return text
    for room in range(max_tokens - codec.count(_CUT), 0, -1):
        # A part may take more tokens beside others than alone.
        last = bisect_left(range(len(text)), True, key=lambda start: codec.count(text[start:]) <= room // 2)
        shown = codec.truncate(text, room - room // 2) + _CUT + text[last:]
        if codec.count(shown) <= max_tokens:
            return shown
    return ""


class IndexRecord(Value):
    """What a run searches. Hashes are sha256; unknown ones are empty."""

    identity: str
    kind: str = ""
    rows: int = 0
    corpus_hash: str = ""
    index_hash: str = ""
    encoder_hash: str = ""

    def equals(self, other: "IndexRecord") -> bool:
        """Whether both give the same passages: the same index, or BM25 over the same corpus."""
        if self.identity == other.identity:
            return True
        bm25 = self.kind == other.kind == "bm25" and self.corpus_hash == other.corpus_hash != ""
        return bm25 and (not self.index_hash or not other.index_hash or self.index_hash == other.index_hash)


class ServedSearcher:
    """The retriever or engine that the settings name, for every event loop of a run. Make it with `open_retriever`."""

    def __init__(
        self,
        settings: SearchConfig,
        identity: str,
        on_outage: Callable[[SearchError], None],
        say: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self._on_outage = on_outage
        self._outage: SearchError | None = None
        self._searchers: PerLoop[RemoteSearcher] = PerLoop(
            lambda: _client(settings, settings.outage, identity, say)
        )

    async def search(self, query: str, topk: int) -> list[Passage]:
        """Waits up to `search.outage` seconds for a retriever that is down; after that every search fails at once.

        Raises SearchError, RunMismatchError when another index is served meanwhile.
        """
        if not query.strip():
            raise SearchError("a query without text")
        return await self._ask(lambda searcher: searcher.search(query, topk))

    async def document(self, passage_id: str) -> Document | None:
        """As `search`."""
        return await self._ask(lambda searcher: searcher.document(passage_id))

    async def _ask(self, question: Callable[[RemoteSearcher], Awaitable[Found]]) -> Found:
        if self._outage is not None:
            raise self._outage
        try:
            return await question(await self._searchers.here())
        except RetrieverDownError as fault:
            self._outage = SearchError(
                f"{fault}; see that the retriever runs, then run the same command again"
            )
            self._on_outage(self._outage)
            raise self._outage from None
        except RefusedError as refused:
            raise _misconfigured(refused) or refused from None


def open_retriever(
    settings: SearchConfig,
    documents: Sequence[Document],
    folder: RunFolder,
    on_outage: Callable[[SearchError], None],
    say: Callable[[str], None] = lambda text: None,
) -> Searcher:
    """The searcher of a run. `on_outage` is told when a server was down for longer than the run waits, `say` as soon as
    it does not answer.

    Raises ConfigError for a URL or a key, SearchError where no server answers, RunMismatchError for a server that is
    not a retriever or serves another index than the run was made with.
    """
    if settings.url is None:
        searcher = bm25_searcher(documents)
        _check_index(folder, _record({"identity": searcher.identity, **searcher.info}), "the corpus")
        return searcher
    record = at_once(ask_retriever(settings, documents)).record
    _check_index(folder, record, settings.url)
    return ServedSearcher(settings, record.identity, on_outage, say)


@dataclass(frozen=True)
class RetrieverAnswer:
    """What a retriever serves, and how many of `asked` of the run's documents it found by their own text."""

    record: IndexRecord
    asked: int
    found: int
    is_same: bool = False
    """Whether its corpus is the run's documents and nothing else."""


async def ask_retriever(
    settings: SearchConfig, documents: Sequence[Document], asked: int = 1, seconds: float = HANDSHAKE_SECONDS
) -> RetrieverAnswer:
    """What the server or engine says within so many seconds that it serves, after it has answered `asked` queries in
    the shape that a run needs; they are texts of documents that lie evenly in the corpus.

    Raises ConfigError for a URL, a path or a key, SearchError where no server answers, RunMismatchError for what is no
    retriever.
    """
    tried = [documents[number * len(documents) // asked] for number in range(min(asked, len(documents)))]
    try:
        async with _client(settings, min(seconds, settings.outage), None) as searcher:
            # A first search may read an index from disk.
            searcher.wait(min(HANDSHAKE_SECONDS, settings.outage))
            found = [await searcher.search(document.text[:_QUERY], settings.topk) for document in tried]
            record = _record(searcher.info)
    except RetrieverDownError as fault:
        raise SearchError(
            f"search.url: {fault}; see that the retriever runs, then run the same command again"
        ) from None
    except SearchError as error:
        known = _misconfigured(error) if isinstance(error, RefusedError) else None
        expected = settings.engine.name if settings.engine else "`scope serve-retriever`"
        raise known or RunMismatchError(f"search.url: {error}; expected {expected}") from None
    hits = sum(
        any(document.text.strip() in passage.text or passage.id == document.id for passage in passages)
        for document, passages in zip(tried, found, strict=True)
    )
    is_same = asked > 1 and Passages.from_documents(documents).corpus_hash == record.corpus_hash
    return RetrieverAnswer(record, len(tried), hits, is_same)


def _misconfigured(refused: RefusedError) -> ConfigError | None:
    """What the settings have to do with it that a server will not answer; None where they have nothing."""
    if refused.status in (401, 403):
        return ConfigError(
            f"search.url: {refused}; the retriever wants a key: name its environment variable in search.api_key_env"
        )
    if refused.status == 404:
        return ConfigError(
            f"search.url: {refused}; expected `scope serve-retriever` at http://host:port, without a path"
        )
    return None


def _record(info: dict[str, Any]) -> IndexRecord:
    known = {name: info[name] for name in IndexRecord.model_fields if info.get(name) is not None}
    try:
        return IndexRecord.model_validate(known)
    except ValidationError as error:
        field = error.errors()[0]["loc"][0]
        raise RunMismatchError(f"search.url: /info says {field} {known[str(field)]!r}") from None


def _check_index(folder: RunFolder, found: IndexRecord, where: str) -> None:
    before = read_value(folder.index, IndexRecord, "restore it, or start a new run")
    if before is None:
        write_atomic(folder.index, found.model_dump_json(indent=1) + "\n")
        return
    if not before.equals(found):
        raise RunMismatchError(
            f"{where}: serves {found.identity} ({found.rows:,} passages), {folder.path} was made with "
            f"{before.identity} ({before.rows:,}); serve that index, or use another --name"
        )


def _client(
    settings: SearchConfig,
    deadline: float,
    expected: str | None,
    say: Callable[[str], None] = lambda text: None,
) -> RemoteSearcher:
    key, engine = secret(settings.api_key_env, "search.api_key_env"), settings.engine
    assert settings.url is not None
    told: dict[str, Any] = {
        "retry_policy": RetryPolicy(deadline=deadline, attempt=60.0, attempts=None, cuts_last=True),
        "say": say,
    }
    if engine is None:
        return HttpSearcher(settings.url, expected_identity=expected, token=key, **told)
    # An engine takes `user:password`, a token, or Elasticsearch's own kind.
    scheme = "ApiKey" if engine.name == "elasticsearch" else "Bearer"
    if key and ":" in key and engine.name != "qdrant":
        scheme, key = "Basic", b64encode(key.encode()).decode()
    client = Client(settings.url, what="search.url", token=key, scheme=scheme, **told)
    return ENGINES[engine.name](engine, client, expected_identity=expected)
