"""Every signal of one iteration, against the bounds outside of which it warns."""

from collections.abc import Mapping

from scope_selfplay.base.gates import Gate
from scope_selfplay.report.health_answers import (
    Answers,
    audited,
    canary_accuracy,
    costs_of,
    held_out_answers,
    judge_use,
    kind_gain,
    length_correlation,
    mean_words,
    pair_answers,
    repeated_sentences,
    score_gain,
    trained_from,
)
from scope_selfplay.report.health_tasks import (
    SAMPLE,
    common_pattern,
    duplicate_share,
    made_tasks,
    needed_searches,
    suspect_texts,
)
from scope_selfplay.report.signals import BOUNDS, Checkup, Measured, signal_of
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.reader import RunReader

Values = dict[str, Measured | float | None]


def examine(reader: RunReader) -> list[Checkup]:
    """A checkup of every iteration that has made tasks or compared its Solver."""
    begun = [place for place in reader.stages() if place[0] > 0]
    making = [iteration for iteration, stage in begun if stage is Stage.TASKS]
    made = {iteration: made_tasks(reader, iteration) for iteration in making}
    answers = {
        number: held_out_answers(reader, number)
        for number in {0, *(iteration for iteration, stage in begun if stage is Stage.COMPARE)}
    }
    found: list[Checkup] = []
    for iteration in sorted({*made, *answers} - {0}):
        values = _of_training(reader, iteration) | suspect_texts(reader, iteration)
        values |= {"canary_accuracy": canary_accuracy(reader, iteration), **audited(reader, iteration)}
        if iteration in made:
            earlier = [task.text for number in made if number < iteration for task in made[number]]
            values |= _of_candidates(reader, iteration) | {
                "duplicates": duplicate_share(
                    [task.text for task in made[iteration]], before=earlier[-SAMPLE:]
                ),
                "common_pattern": common_pattern(made[iteration]),
                "searches_needed": needed_searches(reader, iteration),
                "length_correlation": length_correlation(reader, iteration),
            }
        if iteration in answers:
            values |= _of_answers(answers, iteration, trained_from(reader, iteration))
        signals = tuple(signal_of(name, values.get(name)) for name in BOUNDS)
        found.append(Checkup(iteration, signals, costs_of(reader, iteration)))
    return found


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
        "SELECT avg((status = 'accepted')::INTEGER) AS acceptance, count(*) FILTER (status = 'accepted') AS kept, "
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
    kept, target = means.pop("kept"), (reader.settings.get("tasks") or {}).get("target")
    is_over = reader.stages().get((iteration, Stage.TASKS))
    return {**means, **same, "target_share": kept / target if is_over and target else None}


def _of_training(reader: RunReader, iteration: int) -> Values:
    """What its trainings logged, and the share of calls to the judge that failed in all its stages."""
    found: Values = {}
    for name, stage in (("zero_variance", Stage.SOLVER), ("zero_variance_challenger", Stage.CHALLENGER)):
        shares = [row["zero_variance"] for row in reader.metrics(iteration, stage) if "zero_variance" in row]
        found[name] = sum(shares) / len(shares) if shares else None
    uses = [judge_use(reader, *place) for place in reader.stages() if place[0] == iteration]
    calls = sum(use["calls"] for use in uses)
    return found | {"judge_failures": sum(use["failed"] for use in uses) / calls if calls else None}
