"""GRPO of one role, from rollouts to weights, in plain torch. `TrainingLoop.step` is one step, the same on every rank:

    weights     the engine samples from the weights as they are now (`engines`)
    sampled     all rollouts have ended; M0 reads their rows while they are judged (`model`)
    rewards     what every rank has sampled, in one table: advantages, updates and passes follow from it (`passes`)
    update      gradients pass by pass (`loss`); what they measured is agreed, then clipped, then the optimizer's step
    metrics     a line in metrics.jsonl
    due         a checkpoint that is whole or absent, where it is time for one (`checkpoint`)

Each is local work whose outcome all ranks agree on (`ranks`), under the name that stands there; `sampled` where there
is a KL. In the passes of an update there are only FSDP's own collectives.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from scope_selfplay.base.values import seed_from
from scope_selfplay.rewards.measures import joined_values
from scope_selfplay.training.checkpoint import Checkpoints, export
from scope_selfplay.training.engines import Engine, Rollouts, Rows, StepSampler
from scope_selfplay.training.job import GrpoJob, StepLog, group_metrics, row_metrics, update_metrics
from scope_selfplay.training.loss import (
    PassTotals,
    PolicyLoss,
    advantages,
    check_finite,
    check_first_kl,
    learning_rate,
    loss_of,
    sampling_cap,
)
from scope_selfplay.training.passes import (
    Batch,
    BatchRow,
    RolloutShare,
    UpdatePlan,
    UpdateRules,
    batch_of,
    cut_passes,
    plan_updates,
)

if TYPE_CHECKING:
    from scope_selfplay.training.model import TrainedModel

References = Sequence[Sequence[Any]]
"""What M0 says of the rows of each rollout; empty without a KL."""


def load(job: GrpoJob) -> "TrainedModel":
    """The model of a job, on this rank. Raises CheckpointError, ConfigError."""
    import torch

    from scope_selfplay.training.model import Placement, TrainedModel

    # A new adapter begins with random numbers, which are the same on every rank.
    torch.manual_seed(seed_from(job.seed, "adapter") % 2**63)
    return TrainedModel(
        job.start.weights,
        job.start.base,
        job.model.lora_rank,
        job.ranks,
        Placement.of_this_process(exact=job.exact),
        refers=job.settings.kl_beta > 0,
        temperature=job.temperature,
        attention=job.model.attention,
    )


class TrainingLoop:
    """All ranks make one and `run` it, within `with job.ranks`. What one of them raises ends all.

    `optimizer` is AdamW; another one may take its place before `run`, whose moments no checkpoint brings back.
    """

    def __init__(self, job: GrpoJob, model: "TrainedModel", engine: Engine, sample: StepSampler) -> None:
        import torch

        settings = job.settings
        self.job, self.ranks, self.model, self.engine = job, job.ranks, model, engine
        self._sample = sample
        cap = sampling_cap(settings, job.model.engine, exact=job.exact)
        self._loss = PolicyLoss(loss_of(settings), settings.kl_beta, cap)
        self._rules = UpdateRules(
            self._loss.loss.average,
            settings.updates,
            settings.micro_tokens,
            model.packed,
            settings.max_response,
            teaches_flat=settings.kl_beta > 0 or model.router_weight > 0,
        )
        weights = list(model.trained.values())
        self.optimizer: Any = torch.optim.AdamW(weights, settings.learning_rate, weight_decay=0.0, fused=True)
        self._checkpoints = Checkpoints(job.folder.work, job.ranks)
        self._log = StepLog(job)
        self._under_way: list[Rollouts] = []

    def run(self, begin: Callable[[int], None] = lambda done: None) -> Path:
        """Train from the job's start, or from the newest checkpoint, whose step `begin` gets; save `checkpoint/`."""
        job, settings, ranks = self.job, self.job.settings, self.ranks
        job.records_folder.path.mkdir(parents=True, exist_ok=True)
        done = self._checkpoints.restore(self._state, job.callbacks.say)
        ranks.leader("begin", lambda: self._log.begin(done))
        begin(done)
        ranks.interrupt = self._cancel
        saved, took, kept = perf_counter(), None, done
        # The steps that made the weights: SIGTERM saves them where no checkpoint has. None within an update.
        self._complete: int | None = done
        try:
            for number in range(done, settings.steps):
                self.step(number)
                self._complete = number + 1
                due = settings.is_save_due(number + 1, perf_counter() - saved, took)
                # Clocks differ: the first rank's counts.
                if ranks.agree("due", due, completing=True)[0] or ranks.stopping:
                    begun = perf_counter()
                    self._checkpoints.save(number + 1, self._state())
                    saved, kept = perf_counter(), number + 1
                    took = saved - begun
                # From here on SIGTERM waits for nothing.
                ranks.agree("step", None)
        except SystemExit:
            if ranks.stopping and self._complete not in (None, kept):
                self._checkpoints.save(self._complete, self._state())
            raise
        finally:
            self._cancel()
        export(job, self.model)
        return job.folder.checkpoint

    def step(self, number: int) -> None:
        """One step (from 0), as the module says."""
        from scope_selfplay.inference.slots import threads

        job, settings, ranks, begun = self.job, self.job.settings, self.ranks, perf_counter()
        rollouts = self._under_way[0] if self._under_way else self._begin(number)
        self.engine.serve(rollouts.sampled)
        rows = rollouts.sampled.result()
        references, reference_seconds = self._refer(rows, rollouts)

        result = rollouts.result.result()
        self._under_way.remove(rollouts)
        if result is None:
            # Cancelled, since all ranks are ending: this raises.
            ranks.agree("rewards", None)
        assert result is not None
        assert list(map(len, result.rows)) == list(map(len, rows or ())), "rewards are of other rollouts"
        shares = [list(map(RolloutShare.of, group)) for group in result.groups]
        measures = {**result.metrics, **row_metrics(result.rollouts, rewrites_history=job.rewrites_history)}
        table, told, accounts = zip(
            *ranks.agree("rewards", (shares, measures, job.callbacks.account())), strict=True
        )
        groups = [group for of_rank in table for group in of_rank]
        learnt = advantages([[each.reward for each in group] for group in groups], job.scale)
        if settings.overlap and number + 1 < settings.steps:
            self._begin(number + 1)

        update_begun = perf_counter()
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(settings, number)
        plans = plan_updates(table, learnt, self._rules)
        self._complete = None
        # Two threads at least, whatever `model.processes`: how a sum is shared out decides its last bits.
        with threads(1, 2 if ranks.processes == 1 else 1):
            measured, norm = self._update(number, plans, result.rows, references)

        line = {
            **joined_values(told),
            **group_metrics(groups, learnt),
            **update_metrics(measured, norm),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "step_seconds": perf_counter() - begun,
            "update_seconds": perf_counter() - update_begun + reference_seconds,
            "padding": sum(plan.padding for plan in plans) / len(plans),
        }
        ranks.leader("metrics", lambda: self._log.write(number + 1, line, accounts), completing=True)

    def _begin(self, number: int) -> Rollouts:
        """The rollouts of a step, from the weights as they are now: nothing else samples meanwhile."""
        import torch

        torch.manual_seed(seed_from(self.job.seed, "step", number) % 2**63)
        self.engine.take(self.model, f"{self.job.start.lineage.start}@{number}")
        self.ranks.agree("weights", True)
        rollouts = Rollouts(self._sample, self.job.records_of(number), number)
        self._under_way.append(rollouts)
        if self.ranks.ending:
            self._cancel()
        return rollouts

    def _cancel(self) -> None:
        # Also from the thread that watches the ranks.
        for rollouts in list(self._under_way):
            rollouts.cancel()

    def _refer(self, rows: Rows | None, rollouts: Rollouts) -> tuple[References, float]:
        """What M0 says of every row, and the seconds that it took; `rows` is None where rollouts were cancelled."""
        if not self._loss.beta:
            return [], 0.0
        flat = [row for rollout in rows or () for row in rollout]
        # Others may sample for long after the judge of this rank has failed.
        lengths = self.ranks.agree("sampled", [row.length for row in flat], unless=rollouts.result)
        begun = perf_counter()
        found: dict[int, Any] = {}
        cuts = cut_passes(lengths, self._rules.budget, packed=self._rules.packed)
        for places in cuts[self.ranks.number]:
            batch = self._batch([BatchRow(flat[place]) for place in places])
            of_rows = batch.of_rows(self.model.refer(batch).cpu())
            found |= {
                place: line[len(flat[place].prompt_ids) :].tolist()
                for place, line in zip(places, of_rows, strict=False)
            }
        known = (found[place] for place in range(len(flat)))
        return [[next(known) for _ in rollout] for rollout in rows or ()], perf_counter() - begun

    def _update(
        self, number: int, plans: Sequence[UpdatePlan], rows: Rows, references: References
    ) -> tuple[PassTotals, float]:
        """All updates of a step; what they measured together, and the gradient's norm in the last one."""
        job, settings, ranks = self.job, self.job.settings, self.ranks
        passes = [plan.passes[ranks.number] for plan in plans]
        parts = [
            [[BatchRow.of(each, rows, references) for each in planned] for planned in own] for own in passes
        ]
        updates = len(plans) * settings.epochs
        # What ratios and clips refer to, once the weights are no longer those that sampled.
        old = [
            [self.model.logps(self._batch(part)) if updates > 1 else None for part in of_plan]
            for of_plan in parts
        ]
        found = []
        for turn in range(updates):
            place = turn % len(plans)
            own, own_squares = self._gradients(plans[place], parts[place], old[place])
            told = ranks.agree("update", (own, own_squares), completing=turn + 1 == updates)
            found.append(PassTotals.joined([measured for measured, _ in told]))
            # The first ranks hold one copy between them, or the first one a whole one.
            norm = math.sqrt(sum(squares for _, squares in told[: self.model.placement.sharers]))
            check_finite(number + 1, found[-1].loss, norm)
            if references and number == turn == 0 and job.start.weights == job.start.base:
                # Later updates are no longer made by M0.
                check_first_kl(found[-1].kl / (found[-1].weight or 1.0), job.start.base)
            self.model.clip(norm, settings.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        joined = PassTotals.joined(found)
        return joined._replace(loss=joined.loss / updates), norm

    def _gradients(
        self, plan: UpdatePlan, parts: Sequence[Sequence[BatchRow]], old: Sequence[Any]
    ) -> tuple[PassTotals, float]:
        """The passes of this rank: what they measured, and the squared norm of its share of the gradients."""
        import torch

        found = []
        for place, (part, before) in enumerate(zip(parts, old, strict=True)):
            batch = self._batch(part)
            scores = self.model.score(batch)
            loss, measured = self._loss.of_pass(batch, scores.logps, before, scores.entropies)
            if scores.router is not None:
                share = sum(each.row.length for each in part) / max(1, plan.tokens)
                loss = loss + self.model.router_weight * share * scores.router
            self.model.backward(loss, last=place + 1 == len(parts))
            found.append(measured)
        norm = torch.nn.utils.get_total_norm(self.model.gradients())
        # The one place in an update that waits for the device.
        measured = [PassTotals(*each) for each in torch.stack(found).tolist()]
        return PassTotals.joined(measured), float(norm) ** 2

    def _batch(self, rows: Sequence[BatchRow]) -> Batch:
        filler = self.job.codec.tokenizer.pad_token_id
        return batch_of(rows, filler, self.model.placement.device, packed=self._rules.packed)

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds: the trained weights and their moments; frozen ones are the start's."""
        import torch

        moments: dict[str, Any] = {}
        for name, weight in self.model.trained.items():
            state = self.optimizer.state[weight]
            if not state and isinstance(self.optimizer, torch.optim.AdamW):
                state["step"] = torch.zeros((), device=weight.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
            moments[name] = {key: value.detach() for key, value in state.items()}
        weights = {name: weight.detach() for name, weight in self.model.trained.items()}
        return {"weights": weights, "optimizer": moments}
