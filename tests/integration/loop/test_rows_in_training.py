"""Several rows per rollout train as one would, every loss is the one that TRL has under its name, and masks hold."""

from collections.abc import Sequence
from dataclasses import replace
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
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.loss import PassTotals, PolicyLoss, loss_of
from scope_selfplay.training.model import Placement, TrainedModel
from scope_selfplay.training.passes import BatchRow, RolloutShare, UpdateRules, batch_of, plan_updates
from scope_selfplay.training.ranks import Ranks
from scope_selfplay.training.rows import RewardedRollout, TrainingRow
from tests.integration.loop.seam import by_member, furthest, job_of, row, same, train_on

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
    for job, split in zip(jobs, (False, True), strict=True):
        train_on(job, mixed(split))
    one, several = (read_rows(job.folder.metrics)[0] for job in jobs)
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
    return torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_what_trl_computes_under_its_name(
    random_policy: Path, tmp_path: Path, loss: str, beta: float, is_old: bool
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

    trainer = trl_trainer(random_policy, tmp_path, loss, beta)
    known = {"old_per_token_logps": before if is_old else None, "ref_per_token_logps": base}
    theirs = trl_loss(trainer, rows, advantages, **known)
    theirs.backward()
    assert total == pytest.approx(float(theirs.detach()), rel=1e-5, abs=1e-5)
    ours, expected = gradient_of(model.model), gradient_of(trainer.model)
    assert float((ours - expected).norm()) <= 1e-5 * float(expected.norm())


def test_a_rollout_without_a_reward_is_masked_from_the_kl_as_well(
    random_policy: Path, speaking_policy: Path, tmp_path: Path
) -> None:
    job = job_of(random_policy, tmp_path / "none", start=speaking_policy, kl_beta=0.5)
    train_on(job, lambda record, member, step: RewardedRollout([row(sampled=(60 + member, 61))], None))
    assert same(job.folder.checkpoint, speaking_policy)


def test_truncated_rollouts_are_learnt_from_and_counted(random_policy: Path, tmp_path: Path) -> None:
    def score(record: str, member: int, step: int) -> RewardedRollout:
        return replace(by_member(record, member, step), truncated=True)

    job = job_of(random_policy, tmp_path / "kept")
    train_on(job, score)
    assert not same(job.folder.checkpoint, random_policy)
    assert [line["truncated"] for line in read_rows(job.folder.metrics)] == [1.0]
