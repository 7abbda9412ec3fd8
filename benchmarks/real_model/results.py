"""What is read off a seed's folder, to be kept: how its Solvers answered, and how it behaved step by step."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from benchmarks.real_model.kept import Answered, Behaviour, Kept, Said, Step, Training
from benchmarks.real_model.seeds import Seed
from scope_selfplay.base.values import Rollout, RolloutStatus
from scope_selfplay.rewards.verify import exact_match, f1
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest

References = Mapping[str, str]
"""By question, the right answer."""


def read_seed(seed: Seed) -> Kept:
    right = references(seed, "held_out")
    answers = [read_records(seed.folder / f"answers-{number}.jsonl", Rollout) for number in (0, 1)]
    # The greedy answers come first, in the order of the questions.
    before, after = (behaviour(each[len(right) :], right) for each in answers)
    solver = RunFolder(seed.run).stage(1, Stage.SOLVER)
    manifest = read_manifest(solver.path)
    assert manifest is not None
    training = Training(
        seed=seed.number,
        minutes=round(manifest.seconds / 60, 1),
        held_out=(before, after),
        steps=steps_of(
            read_records(solver.rollouts, Rollout), read_rows(solver.metrics), references(seed, "train")
        ),
    )
    return Kept(training, answered([by_question(each) for each in answers]))


def by_question(answers: Sequence[Rollout]) -> dict[str, list[Said]]:
    """What was said to each question, greedily first."""
    found: dict[str, list[Said]] = {}
    for each in answers:
        query = next((turn.query for turn in each.turns if turn.query is not None), None)
        found.setdefault(each.subject_id, []).append(Said(query, each.answer))
    return found


def answered(said: Sequence[Mapping[str, Sequence[Said]]]) -> list[Answered]:
    before, after = said
    return [
        Answered(id=name, greedy=(one[0], after[name][0]), sampled=(tuple(one[1:]), tuple(after[name][1:])))
        for name, one in before.items()
    ]


def steps_of(
    rollouts: Sequence[Rollout], metrics: Sequence[Mapping[str, float]], right: References
) -> tuple[Step, ...]:
    size = len(rollouts) // len(metrics)
    return tuple(
        Step(
            behaviour=behaviour(rollouts[row * size : (row + 1) * size], right),
            entropy=round(line["entropy"], 4),
            flat=line["zero_variance"],
            seconds=round(line["step_seconds"], 1),
        )
        for row, line in enumerate(metrics)
    )


def references(seed: Seed, name: str) -> References:
    tasks = (each.task for each in read_given_tasks(str(seed.questions(name))))
    return {task.id: task.reference or "" for task in tasks if task is not None}


def behaviour(rollouts: Sequence[Rollout], right: References) -> Behaviour:
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    last = {id(rollout.turns[-1]) for rollout in rollouts if rollout.answer is not None}
    shown = [
        "\n".join(passage.text for turn in rollout.turns for passage in turn.passages or ())
        for rollout in rollouts
    ]
    shares = {
        "parsed": fmean(turn.query is not None or id(turn) in last for turn in turns),
        "searched": fmean(rollout.searches > 0 for rollout in rollouts),
        "found": fmean(right[each.subject_id] in text for each, text in zip(rollouts, shown, strict=True)),
        "answered": fmean(
            each.answer is not None and each.status is RolloutStatus.FINISHED for each in rollouts
        ),
        "right": fmean(exact_match(each.answer or "", [right[each.subject_id]]) for each in rollouts),
        "reward": fmean(f1(each.answer or "", [right[each.subject_id]]) for each in rollouts),
    }
    return Behaviour(**{name: round(share, 4) for name, share in shares.items()})
