"""Every signal of one iteration, against the bounds outside of which it warns."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from scope_selfplay.gates import Gate
from scope_selfplay.health.answers import length_correlation, mean_words, repeated_sentences
from scope_selfplay.health.bounds import BOUNDS
from scope_selfplay.health.costs import failure_share, gpu_hours, judge_use, trained_tokens
from scope_selfplay.health.gains import kind_gain, score_gain
from scope_selfplay.health.held_out import (
    Answers,
    held_out_answers,
    held_out_tasks,
    pair_answers,
    trained_from,
)
from scope_selfplay.health.judging import audited, canary_accuracy
from scope_selfplay.health.signals import Checkup, Measured, signal_of
from scope_selfplay.health.suspects import suspect_texts
from scope_selfplay.health.tasks import duplicate_share, needed_searches
from scope_selfplay.health.variety import SAMPLE, MadeTask, common_pattern, made_tasks
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.reader import RunReader

Values = dict[str, Measured | float | None]


def examine(reader: RunReader) -> list[Checkup]:
    """A checkup of every iteration that has made tasks or compared its Solver."""
    begun = {(state.iteration, state.stage) for state in reader.stages() if state.iteration > 0}
    made = {
        iteration: made_tasks(reader, iteration) for iteration, stage in sorted(begun) if stage is Stage.TASKS
    }
    tasks = held_out_tasks(reader)
    answers = {
        number: held_out_answers(reader, tasks, number)
        for number in {0, *(iteration for iteration, stage in begun if stage is Stage.COMPARE)}
    }
    found: list[Checkup] = []
    for iteration in sorted({*made, *answers} - {0}):
        values = _of_training(reader, iteration) | _of_costs(reader, iteration)
        values |= {"canary_accuracy": canary_accuracy(reader, iteration), **audited(reader, iteration)}
        values |= suspect_texts(reader, iteration)
        if iteration in made:
            values |= _of_candidates(reader, iteration) | _of_texts(reader, iteration, made)
        if iteration in answers:
            values |= _of_answers(answers, iteration, trained_from(reader, iteration))
        signals = tuple(signal_of(name, values.get(name)) for name in BOUNDS)
        found.append(Checkup(iteration=iteration, signals=signals))
    return found


def _of_texts(reader: RunReader, iteration: int, made: Mapping[int, Sequence[MadeTask]]) -> Values:
    """What tasks and rubrics say, and what was answered to them, by samples of them."""
    earlier = [task.text for number in made if number < iteration for task in made[number]]
    return {
        "duplicates": duplicate_share([task.text for task in made[iteration]], before=earlier[-SAMPLE:]),
        "common_pattern": common_pattern(made[iteration]),
        "searches_needed": needed_searches(reader, iteration).needed,
        "length_correlation": length_correlation(reader, iteration),
    }


def _of_answers(answers: Mapping[int, Answers], iteration: int, start: int) -> Values:
    """Of S_t to the held-out tasks: alone, beside S_0's, and beside those of the Solver that it was trained from."""
    now, first = answers[iteration], answers[0]
    words, first_words = mean_words(now), mean_words(first)
    return {
        "solver_gain": score_gain(pair_answers(answers.get(start, {}), now)),
        "kind_gain": kind_gain(pair_answers(first, now)),
        "repeated_sentences": repeated_sentences(now),
        "answer_growth": words / first_words if words and first_words else None,
    }


def _of_candidates(reader: RunReader, iteration: int) -> Values:
    """Of all candidates, counted where they lie."""
    passed = ", ".join(f"avg((gates.{gate}.value)::INTEGER) AS {gate.label}" for gate in Gate)
    (means,) = reader.sql(
        "SELECT avg((status = 'accepted')::INTEGER) AS acceptance, "
        f"avg((status = 'unresolved')::INTEGER) AS unresolved, avg(mean) AS mean_score, {passed} "
        "FROM candidates WHERE iteration = ? AND stage = 'tasks'",
        [iteration],
    )
    (same,) = reader.sql(
        "SELECT avg((low = high)::INTEGER) AS same_score FROM (SELECT min(g.score) AS low, max(g.score) AS high "
        "FROM rollouts r JOIN grades g ON g.rollout_id = r.id "
        "AND g.iteration = $1 AND g.stage = 'tasks' WHERE r.iteration = $1 AND r.stage = 'tasks' "
        "AND r.role = 'solver' GROUP BY r.subject_id HAVING count(g.score) > 1)",
        [iteration],
    )
    share = target_share(reader, iteration, accepted_in(reader, iteration))
    return {**means, **same, "target_share": share}


def accepted_in(reader: RunReader, iteration: int) -> int:
    """How many candidates of an iteration were accepted."""
    (row,) = reader.sql(
        "SELECT count(*) AS accepted FROM candidates WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted'",
        [iteration],
    )
    return int(row["accepted"])


def target_share(reader: RunReader, iteration: int, accepted: int) -> float | None:
    """The share of the wanted tasks that a finished stage B accepted."""
    ended = any(
        (state.iteration, state.stage) == (iteration, Stage.TASKS) and state.manifest
        for state in reader.stages()
    )
    target = _settings(reader).get("tasks", {}).get("target")
    return accepted / target if ended and target else None


def _settings(reader: RunReader) -> dict[str, Any]:
    return yaml.safe_load(reader.folder.config.read_text()) or {}


def _of_training(reader: RunReader, iteration: int) -> Values:
    names = {"zero_variance": Stage.SOLVER, "zero_variance_challenger": Stage.CHALLENGER}
    found: Values = {}
    for name, stage in names.items():
        shares = [row["zero_variance"] for row in reader.metrics(iteration, stage) if "zero_variance" in row]
        found[name] = sum(shares) / len(shares) if shares else None
    return found


def _of_costs(reader: RunReader, iteration: int) -> Values:
    use, accepted = judge_use(reader, iteration, Stage.TASKS), accepted_in(reader, iteration)
    seconds = [
        state.manifest.seconds
        for state in reader.stages()
        if (state.iteration, state.stage) == (iteration, Stage.TASKS) and state.manifest
    ]
    totals = {
        "calls_per_task": use.calls,
        "tokens_per_task": use.tokens,
        "trained_tokens_per_task": trained_tokens(reader, iteration),
        "seconds_per_task": seconds[0] if seconds else None,
    }
    return {
        "judge_failures": failure_share(reader, iteration),
        "gpu_hours": gpu_hours(reader, iteration),
        **{name: total / accepted if total and accepted else None for name, total in totals.items()},
    }
