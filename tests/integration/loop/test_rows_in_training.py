"""Several rows per rollout train as one would, losses are those that TRL has under their names, and the distance of the
engine from the trainer is measured and made up for.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from scope_selfplay.config.training import SolverConfig
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loss import PassTotals, PolicyLoss, loss_of, sampling_cap
from scope_selfplay.training.model import Placement, TrainedModel
from scope_selfplay.training.passes import (
    BatchRow,
    RewardedRollout,
    RolloutShare,
    TrainingRow,
    UpdateRules,
    batch_of,
    plan_updates,
)
from scope_selfplay.training.ranks import Ranks
from tests.integration.loop.seam import Score, furthest, job_of, row, same, trained_metrics

LOSSES = ("grpo", "dr_grpo", "dapo", "cispo", "gspo")

# One step of Adam moves a weight by 1e-3 whatever its gradient; rounding decides where there is hardly any.
CLOSE = 5e-5


def talk(member: int) -> TrainingRow:
    """Two sampled turns of different lengths with a tool result between them."""
    sampled = [60 + member, 61, 62]
    return TrainingRow(
        [40, 41], [*sampled, 80, 81, 63 + member], [1, 1, 1, 0, 0, 1], [-5.0] * 3 + [0.0] * 2 + [-5.0]
    )


def turns(whole: TrainingRow) -> list[TrainingRow]:
    """The same conversation as a row per turn."""
    ids = whole.completion_ids
    return [
        TrainingRow(whole.prompt_ids, ids[:3], [1] * 3, [-5.0] * 3),
        TrainingRow([*whole.prompt_ids, *ids[:5]], ids[5:], [1], [-5.0]),
    ]


def mixed(split: bool) -> Any:
    """The better member speaks twice, the other once."""

    def score(record: str, member: int, step: int) -> RewardedRollout:
        if not member:
            return RewardedRollout([row(sampled=(70, 71))], 0.0)
        return RewardedRollout(turns(talk(member)) if split else [talk(member)], 1.0)

    return score


@pytest.mark.parametrize("loss", ["grpo", "cispo"])
def test_a_rollout_trains_alike_as_one_row_and_as_a_row_per_turn(
    random_policy: Path, speaking_policy: Path, tmp_path: Path, loss: str
) -> None:
    options = {"start": random_policy, "kl_beta": 0.5, "loss": loss}
    jobs = [job_of(speaking_policy, tmp_path / name, **options) for name in ("one", "turns")]
    taught = zip(jobs, (False, True), strict=True)
    one, several = (trained_metrics(job, mixed(split))[0] for job, split in taught)
    assert (one["rows"], several["rows"]) == (1.0, 1.5)
    for name in ("loss", "grad_norm", "reward"):
        assert several[name] == pytest.approx(one[name], rel=1e-3), name
    assert one["kl"] > 0.1
    assert furthest(*(job.folder.checkpoint for job in jobs)) < CLOSE
    assert not same(jobs[0].folder.checkpoint, random_policy)


def sampled_rows(rng: Random) -> list[TrainingRow]:
    """Prompts and completions of several lengths, with tool results between sampled tokens."""
    rows = []
    for length in (3, 9, 5, 14, 2, 7):
        ids = [rng.randrange(40, 200) for _ in range(length)]
        mask = [1, *(int(rng.random() < 0.8) for _ in ids[1:])]
        prompt = [rng.randrange(40, 200) for _ in range(rng.randrange(1, 8))]
        rows.append(TrainingRow(prompt, ids, mask, [0.0] * length))
    return rows


def trl_trainer(policy: Path, folder: Path, loss: str, beta: float) -> Any:
    settings = loss_of(SolverConfig.model_validate({"loss": loss}))
    # TRL's cispo clips at epsilon_high itself.
    high = settings.clip_high + (loss == "cispo")
    return GRPOTrainer(
        model=load_model(policy),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            str(folder),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            per_device_train_batch_size=6,
            num_generations=6,
            max_completion_length=64,
            beta=beta,
            # The KL of the papers (equation 3) is not weighed by the importance ratio.
            use_bias_correction_kl=False,
            loss_type="grpo" if loss == "gspo" else loss,
            importance_sampling_level="sequence" if settings.sequence else "token",
            epsilon=settings.clip_low,
            epsilon_high=high,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["x"]}),
        processing_class=ChatCodec.load(policy).tokenizer,
    )


def trl_loss(trainer: Any, rows: Sequence[TrainingRow], advantages: Sequence[float], **known: Any) -> Any:
    """TRL's own loss of rows in one pass; what is `known` of their completions is padded as they are."""

    def padded(lines: Sequence[Sequence[Any]], *, left: bool = False) -> Any:
        width = max(map(len, lines))
        gaps = [[0] * (width - len(line)) for line in lines]
        both = zip(lines, gaps, strict=True)
        return torch.tensor([[*gap, *line] if left else [*line, *gap] for line, gap in both])

    prompts, completions = [each.prompt_ids for each in rows], [each.completion_ids for each in rows]
    masks = [each.mask for each in rows]
    trainer.current_gradient_accumulation_steps = 1
    inputs = {
        "prompt_ids": padded(prompts, left=True),
        "prompt_mask": padded([[1] * len(line) for line in prompts], left=True),
        "completion_ids": padded(completions),
        "completion_mask": padded([[1] * len(line) for line in completions]),
        "tool_mask": padded(masks),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(sum(map(sum, masks))),
        **{name: padded(lines) for name, lines in known.items() if lines is not None},
    }
    return trainer.compute_loss(trainer.model, inputs)


def gradient_of(model: Any) -> Any:
    found = torch.cat([each.grad.flatten() for each in model.parameters()])
    model.zero_grad()
    return found


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_what_trl_computes_under_its_name(
    random_policy: Path, tmp_path: Path, loss: str, beta: float
) -> None:
    """Ours in several passes, TRL's in one; where log-probabilities are old, clips bind."""
    rng, rows = Random(7), sampled_rows(Random(3))
    placement = Placement(torch.device("cpu"), torch.float32)
    model = TrainedModel(random_policy, random_policy, 0, Ranks(), placement, refers=False)
    policy_loss = PolicyLoss(loss_of(SolverConfig.model_validate({"loss": loss})), beta, None)
    advantages = [2.0, -1.5, 0.5, 1.0, -0.5, -1.5]
    group = [RolloutShare.of(RewardedRollout([each], 1.0)) for each in rows]
    rules = UpdateRules(policy_loss.loss.average, 1, 25, False, 64, teaches_flat=True)
    (plan,) = plan_updates([[group]], [advantages], rules)
    assert len(plan.passes[0]) > 2

    def beside(spread: float) -> list[list[float]]:
        """Log-probabilities so far from those of the model."""
        batch = batch_of([BatchRow(each) for each in rows], 0, "cpu", packed=False)
        lines = zip(rows, batch.of_rows(model.logps(batch)), strict=True)
        return [
            [said + rng.gauss(0, spread) for said in line[len(each.prompt_ids) :].tolist()]
            for each, line in lines
        ]

    before, base = beside(0.002 if loss == "gspo" else 1.5), beside(0.5) if beta else None
    trainer = trl_trainer(random_policy, tmp_path, loss, beta)
    for is_old in (False, True):
        total = clipped = 0.0
        for part in plan.passes[0]:
            places = [each.rollout for each in part]
            chosen = [
                BatchRow(rows[place], each.advantage, each.weight, base and base[place])
                for place, each in zip(places, part, strict=True)
            ]
            batch = batch_of(chosen, 0, "cpu", packed=False)
            earlier = [BatchRow(rows[place], reference=before[place]) for place in places]
            old = batch_of(earlier, 0, "cpu", packed=False).references if is_old else None
            scores = model.score(batch)
            value, measured = policy_loss.of_pass(batch, scores.logps, old, scores.entropies)
            value.backward()
            total, clipped = total + float(value.detach()), clipped + PassTotals(*measured.tolist()).clipped
        assert (clipped > 0) == is_old
        known = {"old_per_token_logps": before if is_old else None, "ref_per_token_logps": base}
        theirs = trl_loss(trainer, rows, advantages, **known)
        theirs.backward()
        assert total == pytest.approx(float(theirs.detach()), rel=1e-5, abs=1e-5)
        ours, expected = gradient_of(model.model), gradient_of(trainer.model)
        assert float((ours - expected).norm()) <= 1e-5 * float(expected.norm())


CLIPPED = {"grpo": 3, "dr_grpo": 3, "dapo": 2, "cispo": 1, "gspo": 3}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_token_counts_as_clipped_where_the_clip_takes_its_gradient(loss: str) -> None:
    """Ratios of 0.75, 1.25 and 3.5, which are 1.49 over a row, with the advantages 1, 0 and -1."""
    tokens = TrainingRow([1], [5, 6, 7], [1] * 3, [0.0] * 3)
    batch = batch_of([BatchRow(tokens, each, 1.0) for each in (1.0, 0.0, -1.0)], 0, "cpu", packed=False)
    old = torch.tensor([[1.0, 0.75, 1.25, 3.5]] * 3).log().neg()
    policy_loss = PolicyLoss(loss_of(SolverConfig.model_validate({"loss": loss})), 0.0, None)
    _, measured = policy_loss.of_pass(batch, torch.zeros_like(old), old, old)
    assert PassTotals(*measured.tolist()).clipped == CLIPPED[loss]
    assert batch.references is None
    # A pass without rows counts for nothing.
    assert [batch_of([], 0, "cpu", packed=True)[place].tolist() for place in (2, 3)] == [[[0.0, 0.0]]] * 2


PROMPT, TAIL = [40, 41, 42], [70, 71]


def apart(policy: Path, *distances: float) -> Score:
    """Rollouts whose engine gave their tokens log-probabilities so far above the trained model's."""
    model = load_model(policy)

    def score(record: str, member: int, step: int) -> RewardedRollout:
        ids = [60 + member, 61, 62 + int(record[1:])]
        with torch.no_grad():
            logps = model(input_ids=torch.tensor([PROMPT + ids])).logits[0].log_softmax(-1)
        true = [float(logps[len(PROMPT) - 1 + place, token]) for place, token in enumerate(ids)]
        said = [one + distance for one, distance in zip(true, distances, strict=True)]
        return RewardedRollout(
            [TrainingRow(PROMPT, ids + TAIL, [1, 1, 1, 0, 0], [*said, 0.0, 0.0])], float(member)
        )

    return score


def line_of(job: GrpoJob, score: Score) -> dict[str, float]:
    (line,) = trained_metrics(job, score)
    return line


def test_the_distance_is_measured_over_sampled_tokens_and_changes_nothing(
    random_policy: Path, tmp_path: Path
) -> None:
    near, far = (job_of(random_policy, tmp_path / name, kl_beta=0.0) for name in ("near", "far"))
    assert line_of(near, apart(random_policy, 0.0, 0.0, 0.0))["sampling_drift"] < 1e-4
    line = line_of(far, apart(random_policy, 0.5, -1.5, 1.0))
    assert line["sampling_drift"] == pytest.approx(1.0, abs=1e-3)
    assert line["sampling_drift_max"] == pytest.approx(1.5, abs=1e-3)
    assert furthest(near.folder.checkpoint, far.folder.checkpoint) == 0.0


@pytest.mark.parametrize("loss", ["grpo", "cispo", "gspo"])
def test_weights_make_up_for_the_distance_up_to_the_cap(
    random_policy: Path, tmp_path: Path, loss: str
) -> None:
    plain = job_of(random_policy, tmp_path / "plain", kl_beta=0.0, loss=loss)
    norm = line_of(plain, apart(random_policy, 0.0, 0.0, 0.0))["grad_norm"]
    for weight, distance in ((0.5, math.log(2)), (1.5, -math.log(1.5)), (2.0, -math.log(4))):
        weighed = job_of(random_policy, tmp_path / str(weight), kl_beta=0.0, loss=loss, sampling_cap=2.0)
        found = line_of(weighed, apart(random_policy, distance, distance, distance))["grad_norm"]
        assert found == pytest.approx(weight * norm, rel=1e-3)


def test_greedy_tokens_weigh_as_much_as_without_weights_and_are_not_measured() -> None:
    """The anchor of ArenaRL: an engine scores greedy tokens at temperature 1, the trainer at that of the run."""
    drawn, greedy = (TrainingRow([1], [5, 6], [1, 1], said) for said in ([-3.5, -2.0], [math.nan] * 2))
    batch = batch_of([BatchRow(greedy, 1.0, 0.25), BatchRow(drawn, 1.0, 0.25)], 0, "cpu", packed=False)
    logps = torch.full(batch.ids.shape, -3.0)
    total, measured = PolicyLoss(loss_of(SolverConfig()), 0.0, 3.0).of_pass(batch, logps, None, logps)
    found = PassTotals(*measured.tolist())
    assert (found.drawn, found.drift, found.drift_max) == (2.0, 1.5, 1.0)
    assert float(total) == pytest.approx(-0.25 * (1.0 + 1.0 + math.exp(0.5) + math.exp(-1.0)))


def test_engines_elsewhere_are_weighed_by_default_and_the_one_here_is_not() -> None:
    settings = SolverConfig()
    assert sampling_cap(settings, "in_process") is None
    assert sampling_cap(settings, "in_process", exact=False) == 3.0
    older = SolverConfig(overlap=1)
    assert sampling_cap(older, "in_process") == 3.0
    assert sampling_cap(older.model_copy(update={"sampling_cap": 0.0}), "in_process") is None
    assert sampling_cap(settings, "vllm_server") == sampling_cap(settings, "vllm_colocated") == 3.0
    assert sampling_cap(SolverConfig(sampling_cap=0), "vllm_server") is None
    assert sampling_cap(SolverConfig(sampling_cap=2), "in_process") == 2.0
