"""The model judge: question -> prompt -> completion -> value, or a typed fault and None; never a made-up number.

    judge = open_model_judge(config.judge, pack, seed=config.seed, folder=run_folder)
    reply = await judge.ask(GradeQuestion(task, criterion, answer))

A judgement comes from the cache, a call in flight, or the endpoint; it is read, or asked for again with another seed.
Seeds follow from the run's seed and the prompt, that is, from what is judged: equal prompts get equal replies and are
paid for once, whoever asks. Only a question that a tournament repeats has a seed per repeat, and so a reply of its own,
also where replies are kept. Works in any event loop, one after the other or side by side.

A verdict of one token goes by how likely its two choices were, against the threshold that the exam has measured for
this judge and question (judge/exam.py); without an exam the likelier one is the verdict.
"""

import asyncio
import hashlib
import json
import math
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from scope_selfplay.base.errors import RecordError, StorageError
from scope_selfplay.base.text import ControlTags
from scope_selfplay.base.values import Fault, Finish, Verdict, content_id, seed_from
from scope_selfplay.config.judge import CallConfig, JudgeConfig, JudgeRole
from scope_selfplay.judge.account import check_failure_budget
from scope_selfplay.judge.endpoint import endpoints_per_loop, special_tokens, with_models
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.protocol import GradeQuestion, GuardQuestion, PairQuestion, Question, Reply, failed
from scope_selfplay.judge.questions import ROLE_OF_PROMPT, JudgePrompt, JudgePrompts, has_guard
from scope_selfplay.judge.replies import has_ended_thinking, thinking_of
from scope_selfplay.net.chat import ChatClient, ChatFault, ChatReply, ChatRequest
from scope_selfplay.net.loops import at_once
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.store.files import disk_faults, publish_once

T = TypeVar("T")

_RETRY_TEMPERATURE = 0.6
# Two score blocks take about 20 tokens; a byte-level tokenizer needs one per character.
_SHORT_TOKENS = 64
_SELF_SERVING = "the answer speaks to whoever grades it, or about its own worth: it meets nothing, and loses"
# 31 bits: some servers keep seeds in signed 32-bit integers.
_SEED_BITS = 0x7FFF_FFFF


class ModelJudge:
    """`config` names a model for every endpoint (`open_model_judge` finds them). `roles` is the stage's account,
    as `StageAccount` says.
    """

    def __init__(
        self,
        config: JudgeConfig,
        pack: Pack,
        *,
        seed: int,
        cache: "JudgementCache | None" = None,
        key: bytes | None = None,
        tokens: Collection[str] = (),
        thresholds: Mapping[str, float] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`key` is the secret of the run's fences, by default one that follows from the seed; `tokens` are the
        judge's special tokens; `thresholds` are log-odds by the name of a question. Raises ConfigError as
        `endpoints_per_loop`.
        """
        self.thresholds = dict(thresholds or {})
        self.prompts = JudgePrompts(pack, config, key=key or fence_key(seed), tags=ControlTags(tokens))
        self.knows_tokens = bool(tokens)
        self.roles: dict[PromptRole, Counter[str]] = defaultdict(Counter)
        self._guards = has_guard(config, pack)
        models = [model_name(config, role) for role in JudgeRole]
        settings = [config.calls[role].model_dump_json() for role in JudgeRole]
        content = content_id(
            "model", *models, *settings, pack.hash, config.verdict, config.max_chars, config.truncation
        )
        self.uncalibrated = f"{model_name(config, JudgeRole.GRADE)} {content}"
        """Names model, prompts and their settings alone: whose thresholds an exam has measured."""
        if self._guards or config.score == "soft":
            content = content_id("short", content, str(self._guards), config.score)
        if self.thresholds:
            content = content_id("calibrated", content, json.dumps(self.thresholds, sort_keys=True))
        self.identity = f"{model_name(config, JudgeRole.GRADE)} {content}"
        self._keeps_form = True
        self._config = config
        self.endpoints = endpoints_per_loop(config, say)
        self._in_flight: dict[tuple[ChatClient, bytes], asyncio.Task[ChatReply]] = {}
        self._cache = cache
        self._seed = seed

    async def close(self) -> None:
        """Close the running loop's connections, for a judge that is let go before its loop ends."""
        for endpoint in set(self.endpoints.values()):
            await endpoint.close()

    async def ask(self, question: Question[T]) -> Reply[T]:
        """Raises JudgeError when too many judgements failed."""
        if (settled := question.settled()) is not None:
            return settled
        reply = await self._ask_until_read(question)
        if self._guards and reply.verdict.fault is None:
            reply = await self._guarded(question, reply)
        fault = reply.verdict.fault
        self.roles[question.role]["calls"] += 1
        if fault is not None:
            self.roles[question.role][fault] += 1
            whole = sum(self.roles.values(), Counter[str]())
            faults = Counter({each: whole[each] for each in Fault if whole[each]})
            kinds = ", ".join(f"{each} {count}" for each, count in faults.most_common())
            check_failure_budget(whole["calls"], faults.total(), self._config.failure_budget, kinds=kinds)
        return reply

    async def _guarded(self, question: Question[T], reply: Reply[T]) -> Reply[T]:
        """The reply to a grade or a comparison, once it is known whom the answers speak to: one that speaks to the
        grader meets nothing, and loses against one that does not.

        The prompt is the same for every criterion and every comparison of an answer: it is paid for once.
        """
        match question:
            case GradeQuestion(answer=answer):
                answers = [answer]
            case PairQuestion(first=first, second=second):
                answers = [first.answer or "", second.answer or ""]
            case _:
                return reply
        asked = (self._ask_until_read(GuardQuestion(question.task, answer)) for answer in answers)
        guards = await asyncio.gather(*asked)
        self.roles[PromptRole.GUARD]["calls"] += len(guards)
        for guard in guards:
            if guard.value is None:
                return Reply(None, guard.verdict, guard.completion)
        claims = [bool(guard.value) for guard in guards]
        if claims in ([False], [False, False], [True, True]):
            return reply
        probability = 0.0 if claims[0] else 1.0
        value = question.likely(probability)
        assert value is not None
        refused = {"value": question.holds(value), "probability": probability, "reasoning": _SELF_SERVING}
        return replace(reply, value=value, degree=None, verdict=reply.verdict.model_copy(update=refused))

    async def _ask_until_read(self, question: Question[T]) -> Reply[T]:
        role = ROLE_OF_PROMPT[question.role]
        call, model = self._config.calls[role], model_name(self._config, role)
        thinks = self._config.endpoint_of(role).native_thinking
        prompts, repeat = self.prompts, question.repeat
        prompt = prompts.render(question)
        if not self._keeps_form:
            prompt = prompt._replace(form="")
        endpoint = await self.endpoints[role].here()
        attempt = 0
        while True:
            request = self._request(prompt, call, attempt, repeat)
            key = cache_key(model, request)
            try:
                completion, origin = await self._complete(endpoint, question, request, key)
            except ChatFault as fault:
                if fault.fault is Fault.REFUSED and prompt.form and not fault.too_long:
                    # Not every engine has structured outputs; the reader takes the same reply without them.
                    self._keeps_form, prompt = False, prompt._replace(form="")
                    continue
                if fault.too_long and (halved := prompts.halved()) is not None:
                    # Whoever writes a text that does not fit is judged by what does: a refusal would mask its reward.
                    prompts, prompt = halved, halved.render(question)
                    continue
                attempt += 1
                if fault.fault is Fault.REFUSED or attempt > self._config.retries:
                    return failed(fault.fault, str(fault), attempts=attempt)
                continue
            attempt += 1
            value = prompt.read(completion.text) if _is_whole(completion, request, thinks=thinks) else None
            if value is not None and origin == "asked" and self._cache is not None:
                # Only what could be read is kept: a later run may find the judge in better health.
                self._cache.put(key, completion)
            if value is not None or attempt > self._config.retries:
                return self._reply(question, prompt, value, completion, attempt, cached=origin == "cached")

    def _reply(
        self,
        question: Question[T],
        prompt: JudgePrompt[T],
        value: T | None,
        completion: ChatReply,
        attempts: int,
        *,
        cached: bool,
    ) -> Reply[T]:
        """Tokens are the last completion's."""
        odds, reasoning = dict(completion.odds), completion.reasoning or thinking_of(completion.text)
        probability = None
        if value is None:
            reasoning = f"unreadable, {prompt.why(completion.text)}: {reasoning}"
        elif (probability := likelihood(odds, prompt.choices)) is not None and len(prompt.choices) == 2:
            if (threshold := self.thresholds.get(question.name)) is not None:
                # Its log-odds are lower by the threshold.
                probability /= probability + (1 - probability) * math.exp(threshold)
                # The word alone may be the other one.
                reasoning = f"{reasoning} (calibrated: {probability:.2f})"
            likely = question.likely(probability)
            value = value if likely is None else likely
        verdict = Verdict(
            value=None if value is None else question.holds(value),
            probability=probability,
            reasoning=reasoning,
            fault=Fault.UNREADABLE if value is None else None,
            attempts=attempts,
            tokens_in=completion.tokens_in,
            tokens_out=completion.tokens_out,
            cached=cached,
        )
        is_soft = self._config.score == "soft" and isinstance(question, GradeQuestion)
        return Reply(value, verdict, completion.text, probability if is_soft else None, odds)

    def _request(self, prompt: JudgePrompt[T], call: CallConfig, attempt: int, repeat: int) -> ChatRequest:
        # A greedy judge would only repeat what could not be read.
        temperature = call.temperature if attempt == 0 else max(call.temperature, _RETRY_TEMPERATURE)
        again = (repeat,) if repeat else ()
        return ChatRequest(
            prompt=prompt.prompt,
            max_tokens=1 if prompt.choices else _SHORT_TOKENS if prompt.pattern else call.max_tokens,
            temperature=0.0 if prompt.choices and attempt == 0 else temperature,
            seed=seed_from(self._seed, "judge", prompt.prompt, attempt, *again) & _SEED_BITS,
            choices=prompt.choices,
            pattern=prompt.pattern or prompt.form,
            top_p=call.top_p,
            # A tag that a judge quotes while it thinks ends its reply too early: not twice.
            stop=prompt.stop if attempt == 0 else (),
        )

    async def _complete(
        self, endpoint: ChatClient, question: Question[T], request: ChatRequest, key: bytes
    ) -> tuple[ChatReply, Literal["asked", "cached", "joined"]]:
        """A completion, and where it comes from."""
        counts = self.roles[question.role]
        if self._cache is not None and (known := self._cache.get(key)) is not None:
            counts["cached"] += 1
            return known, "cached"
        # Shielded: one caller who goes away must not take the completion from the others.
        if (task := self._in_flight.get((endpoint, key))) is not None:
            counts["joined"] += 1
            return await asyncio.shield(task), "joined"
        counts["asked"] += 1
        task = self._in_flight[endpoint, key] = asyncio.ensure_future(self._send(endpoint, question, request))
        task.add_done_callback(lambda done: self._forget((endpoint, key), done))
        return await asyncio.shield(task), "asked"

    async def _send(self, endpoint: ChatClient, question: Question[T], request: ChatRequest) -> ChatReply:
        # Prompts about the same task share their beginning.
        reply = await endpoint.complete(request, subject=question.task.text)
        self.roles[question.role].update(tokens_in=reply.tokens_in, tokens_out=reply.tokens_out)
        return reply

    def _forget(self, call: tuple[ChatClient, bytes], task: "asyncio.Task[ChatReply]") -> None:
        self._in_flight.pop(call, None)
        if not task.cancelled():
            task.exception()  # looked at, so that one whose callers went away is not reported as lost


def open_model_judge(
    config: JudgeConfig,
    pack: Pack,
    *,
    seed: int,
    folder: Path,
    say: Callable[[str], None] = lambda text: None,
    examined: "Callable[[ModelJudge], Mapping[str, float]] | None" = None,
) -> ModelJudge:
    """A judge whose endpoints answer and serve its models; its key and paid judgements lie in the run's `folder`.

    `examined` gives the thresholds of the same judge without thresholds, guard and soft scores.
    Raises ConfigError for what the endpoints do not know, JudgeError where one does not answer.
    """
    named = at_once(with_models(config))
    tokens = at_once(special_tokens(named))
    path = folder / config.cache if config.cache is not None else None
    # Runs that share paid judgements share their key, too: the same text then has the same mark in all of them.
    place = folder if path is None else path.parent
    key = run_key(place)
    cache = None if path is None else JudgementCache(path)
    opened = partial(ModelJudge, pack=pack, seed=seed, cache=cache, key=key, tokens=tokens, say=say)
    if examined is None:
        return opened(named)
    plain = opened(named.model_copy(update={"guard": False, "score": "hard", "failure_budget": 1.0}))
    return opened(named, thresholds=examined(plain))


def likelihood(odds: Mapping[str, float], choices: tuple[str, ...]) -> float | None:
    """How likely the first of two choices was, of three the third being a tie and counting half; None where no choice
    is known.

    One that was not told of is at most as likely as the least likely that was, and as what is left of 1.
    """
    most = max(0.0, min([1 - sum(odds.values()), *odds.values()]))
    known, told = [odds.get(choice, most) for choice in choices], [each for each in choices if each in odds]
    # Where the one that was told of may be no likelier than the other, the word alone decides.
    if not told or not sum(known) or (len(told) < len(choices) and max(known) <= most):
        return None
    return (known[0] + sum(known[2:]) / 2) / sum(known)


def model_name(config: JudgeConfig, role: JudgeRole) -> str:
    """What a role's judge is called: the model, the hash of its weights if one is required, its template."""
    endpoint = config.endpoint_of(role)
    settings = "".join(f" {name}={value}" for name, value in sorted(endpoint.template.items()))
    return f"{endpoint.model}{f'@{endpoint.weights}' if endpoint.weights else ''}{settings}"


def _is_whole(completion: ChatReply, request: ChatRequest, *, thinks: bool) -> bool:
    """Whether a completion can hold a verdict of its own.

    One that was cut off may end in a quotation of the answer, and so may one of a model that `thinks` natively where
    neither the server nor an end of thinking tells its thoughts from its reply.
    """
    if request.choices:
        return True
    if completion.finish is Finish.LENGTH:
        return False
    return not thinks or bool(request.pattern or completion.reasoning) or has_ended_thinking(completion.text)


_TABLE = "CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply BLOB NOT NULL) WITHOUT ROWID"
_CHECKSUM = 8
_WAIT = 60.0


def cache_key(model: str, request: ChatRequest) -> bytes:
    """What a completion follows from: model with weights, prompt, sampling, seed, choices."""
    # Where a reply stops changes nothing of what it says.
    fields = request[:7]
    return hashlib.blake2b(json.dumps([model, *fields]).encode(), digest_size=20).digest()


class JudgementCache:
    """Replies by `cache_key`, in a file. May be used from several threads."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError for a file that is not a cache, StorageError for a disk that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock, self._database = path, threading.Lock(), _open(path)

    def get(self, key: bytes) -> ChatReply | None:
        with self._opened() as database:
            row = database.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        checksum, data = (row[0][:_CHECKSUM], row[0][_CHECKSUM:]) if row else (b"", b"")
        if checksum != _checksum(key, data):
            return None
        text, reasoning, finish, tokens_in, tokens_out, odds = json.loads(zlib.decompress(data))
        return ChatReply(text, reasoning, Finish(finish), tokens_in, tokens_out, odds)

    def put(self, key: bytes, reply: ChatReply) -> None:
        """Raises StorageError. What another writer has put there meanwhile is replaced by its equal."""
        data = zlib.compress(json.dumps(reply).encode(), level=1)
        entry = (key, _checksum(key, data) + data)
        with self._opened() as database, database:
            database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", entry)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._database
        except sqlite3.Error as error:
            raise _storage_error(self._path, error) from None

    def close(self) -> None:
        with self._lock:
            self._database.close()


def _open(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=_WAIT, check_same_thread=False)
        _write_ahead(database)
        # A power cut may lose the last entries, never damage the file; they would be paid for once more.
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute(_TABLE)
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error) or "malformed" in str(error):
            raise RecordError(
                f"{path}: not a judgement cache ({error}); remove it, or set judge.cache"
            ) from None
        raise _storage_error(path, error) from None
    return database


def _write_ahead(database: sqlite3.Connection) -> None:
    """WAL mode. SQLite's own timeout does not hold while several processes switch a new file to it."""
    end = time.monotonic() + _WAIT
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= end:
                raise
            time.sleep(0.01)


def _storage_error(path: Path, error: sqlite3.Error) -> StorageError:
    return StorageError(f"{path}: the judgement cache failed ({error}); check the disk, then run again")


def _checksum(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(key + data, digest_size=_CHECKSUM).digest()


KEY_FILE = "fence.key"
_BYTES = 32


def run_key(folder: Path) -> bytes:
    """The key of the run in `folder`; every process and every later start gets the same one.

    Raises RecordError for a damaged file.
    """
    path = folder / KEY_FILE
    if not path.exists():
        # Written whole and only once, whoever else makes it at the same time: the first one wins.
        own = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with disk_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            own.touch(mode=0o600)
            own.write_text(f"{secrets.token_bytes(_BYTES).hex()}\n", "ascii")
            try:
                publish_once(own, path)
            finally:
                own.unlink(missing_ok=True)
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except (ValueError, UnicodeDecodeError):
        key = b""
    if len(key) != _BYTES:
        raise RecordError(
            f"{path}: damaged, expected {2 * _BYTES} hex digits; restore the file, or delete it: judgements are then "
            "asked again"
        )
    return key
