"""Every signal of one iteration, against the bounds outside of which it warns."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from scope_selfplay.config import NoiseConfig
from scope_selfplay.gates import Gate
from scope_selfplay.health.answers import (
    idle_growth,
    length_correlation,
    mean_words,
    repeated_sentences,
    repeats_growth,
)
from scope_selfplay.health.bounds import BOUNDS
from scope_selfplay.health.costs import failure_share, gpu_hours, judge_use, trained_tokens
from scope_selfplay.health.coverage import unfounded_criteria, unmet_demands
from scope_selfplay.health.gains import (
    asked_gain,
    certain_criteria,
    kind_gain,
    mean_met,
    pattern_gain,
    score_gain,
)
from scope_selfplay.health.held_out import (
    ASKED,
    HIDDEN,
    Answers,
    held_out_answers,
    held_out_tasks,
    pair_answers,
    trained_from,
)
from scope_selfplay.health.judging import audited, canary_accuracy
from scope_selfplay.health.signals import Checkup, Measured, signal_of
from scope_selfplay.health.suspects import suspect_texts
from scope_selfplay.health.tasks import measure_diversity, needed_searches, topic_drift, worth_of_passages
from scope_selfplay.health.variety import (
    SAMPLE,
    MadeTask,
    common_pattern,
    made_tasks,
    number_of_patterns,
    opening_growth,
    pattern_growth,
    phrase_rise,
    repeated_criterion,
)
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
            values |= _of_candidates(reader, iteration, min(made)) | _of_texts(reader, iteration, made)
        if iteration in answers:
            values |= _of_answers(answers, iteration, trained_from(reader, iteration))
        signals = tuple(signal_of(name, values.get(name)) for name in BOUNDS)
        found.append(Checkup(iteration=iteration, signals=signals))
    return found


def _of_texts(reader: RunReader, iteration: int, made: Mapping[int, Sequence[MadeTask]]) -> Values:
    """What tasks and rubrics say, and what was answered to them, by samples of them."""
    now, texts = made[iteration], [task.text for task in made[iteration]]
    earlier = [task.text for number in made if number < iteration for task in made[number]]
    diversity = measure_diversity(texts, before=earlier[-SAMPLE:])
    values: Values = {
        "duplicates": diversity.duplicates,
        "distance": diversity.distance,
        "task_patterns": number_of_patterns(now),
        "common_pattern": common_pattern(now),
        "repeated_criterion": repeated_criterion(now),
        "unmet_demands": unmet_demands(reader, iteration),
        "unfounded_criteria": unfounded_criteria(reader, iteration),
        "searches_needed": needed_searches(reader, iteration).needed,
        "passage_gain": worth_of_passages(reader, iteration).gain,
        "length_correlation": length_correlation(reader, iteration),
    }
    if iteration > min(made):
        first = made[min(made)]
        values["pattern_growth"] = pattern_growth(first, now)
        values["opening_growth"] = opening_growth(first, now)
        values["phrase_rise"] = phrase_rise(first, now)
        values["topic_drift"] = topic_drift([task.text for task in first], texts)
    return values


def _of_answers(answers: Mapping[int, Answers], iteration: int, start: int) -> Values:
    """Of S_t to the held-out tasks: alone, beside S_0's, and beside those of the Solver that it was trained from."""
    now, first = answers[iteration], answers[0]
    since_start, since_first = pair_answers(answers.get(start, {}), now), pair_answers(first, now)
    return {
        "asked_score": mean_met(now, ASKED),
        "hidden_score": mean_met(now, HIDDEN),
        "solver_gain": score_gain(since_start),
        "asked_gain": asked_gain(since_start),
        "kind_gain": kind_gain(since_first),
        "pattern_gain": pattern_gain(since_first),
        "certain_criteria": certain_criteria(now),
        "repeated_sentences": repeated_sentences(now),
        "repeats_growth": repeats_growth(since_first),
        "answer_words": mean_words(now),
        "answer_growth": _growth(mean_words(now), mean_words(first)),
        "idle_growth": idle_growth(since_first),
    }


def _of_candidates(reader: RunReader, iteration: int, first: int) -> Values:
    """Of all candidates, counted where they lie; `first` is the first iteration that made tasks."""
    means = _candidate_means(reader, iteration)
    words = _candidate_means(reader, first)["task_words"] if iteration > first else None
    same = reader.sql(
        "SELECT avg((low = high)::INTEGER) AS same_score, avg(spread) AS rubric_spread FROM ("
        "SELECT min(g.score) AS low, max(g.score) AS high, stddev_samp(g.score) AS spread "
        "FROM rollouts r JOIN grades g ON g.rollout_id = r.id "
        "AND g.iteration = $1 AND g.stage = 'tasks' WHERE r.iteration = $1 AND r.stage = 'tasks' "
        "AND r.role = 'solver' GROUP BY r.subject_id HAVING count(g.score) > 1)",
        [iteration],
    )
    return {
        **means,
        **same[0],
        "task_growth": _growth(means["task_words"], words),
        "target_share": target_share(reader, iteration, accepted_in(reader, iteration)),
    }


def _candidate_means(reader: RunReader, iteration: int) -> dict[str, float | None]:
    passed = ", ".join(f"avg((gates.{gate}.value)::INTEGER) AS {gate.label}" for gate in Gate)
    (row,) = reader.sql(
        "SELECT avg((status = 'accepted')::INTEGER) AS acceptance, "
        "avg((status = 'unresolved')::INTEGER) AS unresolved, "
        f"avg(mean) AS mean_score, avg(len(string_split(task.text, ' '))) AS task_words, {passed}, "
        "avg(task.search_turns) FILTER (status = 'accepted') AS searches_made, "
        "avg((task.search_turns < task.assigned_turns)::INTEGER) FILTER (status = 'accepted') AS fewer_searches "
        "FROM candidates WHERE iteration = ? AND stage = 'tasks'",
        [iteration],
    )
    return dict(row)


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


def judge_noise(reader: RunReader) -> float | None:
    """The share of the judge's calls that the run's config spoils; None for a judge that is left alone."""
    noise = NoiseConfig.model_validate(_settings(reader).get("judge", {}).get("noise") or {})
    return noise.total or None


def _settings(reader: RunReader) -> dict[str, Any]:
    return yaml.safe_load(reader.folder.config.read_text()) or {}


def _growth(now: float | None, first: float | None) -> float | None:
    return now / first if now and first else None


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
        "judge_noise": judge_noise(reader),
        "gpu_hours": gpu_hours(reader, iteration),
        **{name: total / accepted if total and accepted else None for name, total in totals.items()},
    }
