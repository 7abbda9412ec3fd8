"""An evaluation that is killed ten times: the same result to the byte, and no judgement is paid for twice.

The policy is a script, so that a try takes no time but for its writes; judge, cache and records are the real ones.
"""

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.counting import FaultCounts
from scope_selfplay.base.sampling import ScriptedModel
from scope_selfplay.base.values import Role, rng_from
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.dialects.families import dialect
from scope_selfplay.evaluation import evaluate
from scope_selfplay.evaluation.benchmarks import Decoding, embedded_benchmark
from scope_selfplay.evaluation.contestants import Contestant, placed
from scope_selfplay.evaluation.folder import EvaluationFolder
from scope_selfplay.judge.model import KEY_FILE
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.policy.episodes import Player, PolicyFormat
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.run.begin import with_judge_prompts
from scope_selfplay.run.run import Run
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.testing.chat_server import FakeServer
from tests.integration.loop.test_run import in_child
from tests.integration.serving.threads import in_thread
from tests.kills import die_before_write
from tests.word_codec import WordCodec

KILLS = 10
SETTINGS = "domain=embedded corpus.sample=60 judge.kind=model judge.concurrency=1 judge.exam=none".split()
WORDS = "heron otter saffron Mell Rill".split()


def answering_by_chance(place: Any, contestant: Contestant, decoding: Decoding) -> Player:
    """A checkpoint that answers a word or two."""

    def script(prompt: str, key: Any) -> str:
        rng = rng_from(*key)
        facts = [f"Its {rng.choice(('emblem', 'river'))} is the {rng.choice(WORDS)}." for _ in range(2)]
        return f"<answer>{' '.join(facts)}</answer>"

    codec: Any = WordCodec()
    engine = ScriptedModel(codec, script, identity=contestant.name)
    limits = place.context.limits(Role.SOLVER)
    return Player(engine, PolicyFormat(codec, dialect("qwen2.5"), contestant.name, limits))


def evaluation_of(out: Path, judge: str) -> evaluate.Evaluation:
    config = load_config(None, [*SETTINGS, f"judge.endpoint.base_url={judge}"])
    documents = embedded_documents(config.seed, config.corpus)
    pack = with_judge_prompts(load_pack(pack_path("embedded")), config.judge)
    run = Run(config, RunFolder(out.parent / "run"), pack)
    loaded = embedded_benchmark(documents, seed=0, count=8)
    place, asked = placed(run, loaded, Decoding(samples=2, temperature=1.0))
    contestants = [Contestant("one"), Contestant("other")]
    return evaluate.Evaluation(place, asked, contestants, EvaluationFolder(out), pairwise=True)


def evaluate_in_process(out: Path, judge: str, kill_before: int | None) -> None:
    # In a process of its own.
    evaluate.answering_as = answering_by_chance
    die_before_write(kill_before)
    evaluation_of(out, judge).run()


@pytest.fixture
def judge() -> Iterator[tuple[FakeServer, str]]:
    lexical = LexicalJudge()
    fake = FakeServer(lambda request: judged_reply(lexical, request), model=lexical.identity)
    with in_thread(fake.serving()) as url:
        yield fake, url


def paid(fake: FakeServer) -> Counter[tuple[str, object]]:
    """How often each judgement was asked for."""
    return Counter((request.prompt, request.body.get("seed")) for request in fake.requests)


@pytest.mark.fault(1)
def test_ten_kills_leave_the_result_as_it_is_and_pay_for_nothing_twice(
    tmp_path: Path, judge: tuple[FakeServer, str], counts: FaultCounts
) -> None:
    fake, url = judge
    whole, out, kills = tmp_path / "whole", tmp_path / "killed", 0
    assert in_child(evaluate_in_process, whole, url, None) == 0
    once = paid(fake)
    assert len(once) > 50 and set(once.values()) == {1}
    fake.requests.clear()
    # Two evaluations mark their judge's texts each in its own way, unless they share the key.
    (key,) = whole.rglob(KEY_FILE)
    shared = out / key.relative_to(whole)
    shared.parent.mkdir(parents=True)
    shutil.copy(key, shared)
    # Every second try comes one write further.
    while (ending := in_child(evaluate_in_process, out, url, 1 + kills // 2)) != 0:
        assert ending == -signal.SIGKILL and kills < 3 * KILLS
        kills += 1
    assert kills >= KILLS
    for name in ("result.json", "answers.jsonl", "items.jsonl", "contestants.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    found = paid(fake)
    assert set(found) == set(once)
    # One call at a time is under way (judge.concurrency): it alone can be lost with a process.
    again = sum(found.values()) - len(found)
    assert again <= kills / 2
    counts.add(tried=kills, survived=kills, paid_again=again, in_flight=kills)
