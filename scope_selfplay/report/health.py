"""Every signal of one iteration, against the bounds outside of which it warns; and what an iteration cost.

Signals of tasks are in `signals`. Here are those of answers of the Solvers to the held-out tasks: what one gained,
repetition, length; and those of the judge: canaries, an audit. A finished stage has an account of its judge
(`judge.json`): verdicts and, where a model judges, calls and tokens by role, rubric writing among them; of a running
stage its records are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.intervals import DIFFERENCES, estimate_mean, fit_over_items
from scope_selfplay.base.values import Gate
from scope_selfplay.judge.account import read_account
from scope_selfplay.judge.checks import (
    AGREE,
    DRIFT,
    FIRST_PLACE,
    LENGTH,
    UNREAD,
    AuditReport,
    AuditWay,
    read_audit,
    read_canaries,
)
from scope_selfplay.report.signals import (
    BOUNDS,
    LEAST_TASKS,
    LOOKS,
    SAMPLE,
    Checkup,
    Evidence,
    Signal,
    common_pattern,
    duplicate_share,
    evidence,
    made_tasks,
    measured,
    needed_searches,
    repeated_sentence,
    signal_of,
    suspect_texts,
    word_count,
)
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.ratings import find_ratings
from scope_selfplay.store.reader import RunReader

HELD_OUT_SAMPLE = 2_000
"""Held-out tasks whose answers are looked at."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class HeldOutAnswer:
    """What one Solver answered to a held-out task."""

    task_id: str
    task: str
    text: str
    score: float | None

    @property
    def shown(self) -> Evidence:
        return evidence(0, self.task_id, self.task, self.text or "(no answer)")


Answers = Mapping[str, HeldOutAnswer]
"""One Solver's answers by the task's id."""


Values = dict[str, Signal | float | None]


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
        "solver_gain": score_gain(answers.get(start, {}), now),
        "repeated_sentences": repeated_sentences(now),
        "answer_growth": words / first_words if words and first_words else None,
    }


def _of_candidates(reader: RunReader, iteration: int) -> Values:
    """Of all candidates, counted where they lie."""
    passed = ", ".join(f"avg((gates.{gate}.value)::INTEGER) AS {gate.label}" for gate in Gate)
    (means,) = reader.sql(
        "SELECT avg((status = 'accepted')::INTEGER) AS acceptance, count(*) FILTER (status = 'accepted') AS kept, "
        f"avg((status = 'unresolved')::INTEGER) AS unresolved, avg(mean) AS mean_score, {passed}, "
        "avg((reason <> 'ungrounded')::INTEGER) FILTER (rubric IS NOT NULL) AS grounded "
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


def held_out_answers(reader: RunReader, iteration: int) -> Answers:
    """Those of S_t to the first `HELD_OUT_SAMPLE` held-out tasks, as far as they are graded."""
    rows = reader.sql(
        "SELECT c.task.id AS task_id, c.task.text AS task, coalesce(r.answer, '') AS text, g.score "
        "FROM (SELECT task FROM candidates "
        "WHERE iteration = 0 AND stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL "
        "ORDER BY ordinal LIMIT $2) c "
        "JOIN rollouts r ON r.subject_id = c.task.id AND r.iteration = $1 AND r.stage = 'compare' "
        "JOIN grades g ON g.rollout_id = r.id AND g.iteration = $1 AND g.stage = 'compare' ORDER BY r.ordinal",
        [iteration, HELD_OUT_SAMPLE],
    )
    return {row["task_id"]: HeldOutAnswer(**row) for row in rows}


def trained_from(reader: RunReader, iteration: int) -> int:
    """The number of the Solver from which S_t was trained: the one before, unless that was not promoted."""
    ratings = find_ratings(reader.folder, iteration)
    number = ratings.starts[-1].partition("-")[0].removeprefix("S_") if ratings and ratings.starts else ""
    return int(number) if number.isdecimal() else iteration - 1


ATTEMPTS_SAMPLE = 200
"""Tried tasks of an iteration whose answers are looked at."""


def mean_words(answers: Answers) -> float | None:
    """Words in an answer, where there is one."""
    counts = [word_count(answer.text) for answer in answers.values() if answer.text]
    return sum(counts) / len(counts) if counts else None


def repeated_sentences(answers: Answers) -> Signal | None:
    """The share of answers that say a sentence twice."""
    if len(answers) < LEAST_TASKS:
        return None
    rows = [answer for answer in answers.values() if repeated_sentence(answer.text)]
    return Signal(len(rows) / len(answers), behind=tuple(answer.shown for answer in rows))


def length_correlation(reader: RunReader, iteration: int) -> Signal | None:
    """Of words and score among the answers to one task, over the first tried tasks of an iteration.

    Behind it the tasks whose longest answer is furthest above the mean of their scores.
    """
    tasks = [own for own in _attempts(reader, iteration).values() if len(own) > 1]
    if len(tasks) < LEAST_TASKS:
        return None
    deviations = [_deviations(own) for own in tasks]
    rows = np.array([[(x * x).sum(), (x * y).sum(), (y * y).sum()] for x, y in deviations])
    fitted = fit_over_items(rows, lambda sums: sums, seed=0)
    if not fitted.whole[0] or not fitted.whole[2]:
        return None
    longest = sorted(
        ((y[x.argmax()], own[int(x.argmax())]) for (x, y), own in zip(deviations, tasks, strict=True)),
        key=lambda row: -row[0],
    )
    behind = [
        evidence(iteration, attempt["task"], attempt["text"], attempt["answer"])
        for above, attempt in longest
        if above > 0
    ]
    return measured(fitted.estimate(_correlation, len(rows), looks=LOOKS), behind=tuple(behind))


def _attempts(reader: RunReader, iteration: int) -> dict[str, list[dict[str, Any]]]:
    """The graded answers to the first tried tasks of an iteration: task, its text, answer and score, by task."""
    tried = reader.sql(
        "SELECT task.id AS id, task.text AS text, rollout_ids FROM candidates WHERE iteration = ? "
        "AND stage = 'tasks' AND mean IS NOT NULL ORDER BY ordinal LIMIT ?",
        [iteration, ATTEMPTS_SAMPLE],
    )
    ids = [rollout for row in tried for rollout in row["rollout_ids"]]
    if not ids:
        return {}
    # Ids in the query itself: Bloom filters then skip most of a large file.
    marks = ", ".join("?" * len(ids))
    rows = reader.sql(
        "SELECT r.subject_id AS task, r.answer, g.score FROM rollouts r JOIN grades g ON g.rollout_id = r.id "
        "AND g.iteration = r.iteration AND g.stage = r.stage WHERE r.iteration = ? AND r.stage = 'tasks' "
        f"AND r.id IN ({marks}) AND g.score IS NOT NULL AND r.answer IS NOT NULL ORDER BY r.ordinal",
        [iteration, *ids],
    )
    texts = {row["id"]: row["text"] for row in tried}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["task"], []).append(row | {"text": texts[row["task"]]})
    return found


def _deviations(attempts: Sequence[Mapping[str, Any]]) -> tuple[Numbers, Numbers]:
    """Words and scores, each less its mean over the task's answers: what the task itself decides is taken out."""
    words = np.array([word_count(attempt["answer"]) for attempt in attempts], dtype=np.float64)
    scores = np.array([attempt["score"] for attempt in attempts])
    return words - words.mean(), scores - scores.mean()


def _correlation(sums: Numbers) -> Numbers:
    """From sums of squares and products; 0 where either never varies."""
    words, both, scores = sums.T
    spread = np.sqrt(words * scores)
    return np.asarray(np.where(spread > 0, both / np.where(spread > 0, spread, 1), 0.0))


_VERDICTS = f"""
    SELECT v.attempts > 0 AS asked, v.fault IS NOT NULL AS failed, v FROM (
        SELECT unnest(verdicts) AS v FROM grades WHERE iteration = $1 AND stage = $2 UNION ALL
        SELECT unnest([{", ".join(f"gates.{gate}" for gate in Gate)}]) FROM (
            SELECT gates FROM candidates WHERE iteration = $1 AND stage = $2
            QUALIFY row_number() OVER (PARTITION BY coalesce(task.id, id) ORDER BY ordinal DESC) = 1) UNION ALL
        SELECT verdict FROM comparisons WHERE iteration = $1 AND stage = $2) WHERE v IS NOT NULL UNION ALL
    SELECT true, winner_ids IS NULL, verdict FROM selections WHERE iteration = $1 AND stage = $2 UNION ALL
    SELECT true, value IS NULL, verdict FROM scores WHERE iteration = $1 AND stage = $2
"""

_HOLDS: Mapping[Stage, tuple[str, tuple[str, ...]]] = {
    Stage.CHALLENGER: ("train_challenger", ("judge", "retriever", "solver")),
    Stage.TASKS: ("make_tasks", ("judge", "retriever", "solver", "challenger")),
    Stage.SOLVER: ("train_solver", ("judge", "retriever")),
    Stage.COMPARE: ("compare", ("judge", "retriever", "solver")),
}
"""Settings under `cluster` of a stage's Job and of the servers that run meanwhile."""


def costs_of(reader: RunReader, iteration: int) -> dict[str, float]:
    """What an iteration's accepted tasks took, each, and its stages; only what is known."""
    (row,) = reader.sql(
        "SELECT count(*) AS accepted FROM candidates WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted'",
        [iteration],
    )
    use = judge_use(reader, iteration, Stage.TASKS)
    making = reader.stages().get((iteration, Stage.TASKS))
    by_task = {
        "judge calls for an accepted task": use["calls"],
        "judge tokens for an accepted task": use["tokens"],
        "seconds for an accepted task": making.seconds if making else 0.0,
    }
    found = {name: total / row["accepted"] for name, total in by_task.items() if total and row["accepted"]}
    hours = gpu_hours(reader, iteration)
    return found | ({"GPU-hours of the finished stages": hours} if hours else {})


def gpu_hours(reader: RunReader, iteration: int) -> float | None:
    """GPUs that the finished stages of an iteration held, servers included, times their time.

    None where the config names no image with CUDA (`cluster.images.trainer`): then its pods' sizes are mere defaults.
    """
    cluster = reader.settings.get("cluster") or {}
    if cluster.get("tiny") or not (cluster.get("images") or {}).get("trainer"):
        return None
    seconds = 0.0
    for (number, stage), manifest in reader.stages().items():
        if number == iteration and manifest is not None:
            job, servers = _HOLDS[stage]
            settings = cluster.get(job) or {}
            running = [server for name in servers if (server := cluster.get(name) or {}).get("serve", True)]
            beside = sum(server.get("gpus", 0) for server in running)
            # Workers that share a stage have their seconds added up, while all of them use the same servers.
            held = settings.get("gpus", 0) * settings.get("nodes", 1) + beside / settings.get("shards", 1)
            seconds += held * manifest.seconds
    return seconds / 3600 or None


def judge_use(reader: RunReader, iteration: int, stage: Stage) -> Mapping[str, int]:
    """`calls`, `failed` ones, and the `tokens` that were paid for, by one stage, finished or running.

    After a kill the account by role holds the last attempt only and the records hold all but rubric writing: the
    larger count is the better one.
    """
    (row,) = reader.sql(
        "SELECT count(*) FILTER (asked) AS calls, count(*) FILTER (asked AND failed) AS failed, "
        f"sum(v.tokens_in + v.tokens_out) FILTER (NOT v.cached) AS tokens FROM ({_VERDICTS})",
        [iteration, stage.value],
    )
    recorded = {name: int(number or 0) for name, number in row.items()}
    account = read_account(reader.folder.stage(iteration, stage).path)
    if account.calls:
        recorded |= {"calls": account.calls, "failed": account.failed}
    whole = account.whole
    asked = {"calls": whole["calls"], "failed": whole["faults"]}
    fuller = asked if asked["calls"] > recorded["calls"] else recorded
    return {**fuller, "tokens": max(whole["tokens_in"] + whole["tokens_out"], recorded["tokens"])}


def score_gain(before: Answers, after: Answers) -> Signal | None:
    """The later Solver's score less the earlier one's, by task; behind it the tasks that lost most."""
    pairs = [(before[task], answer) for task, answer in after.items() if task in before]
    known = [
        (new.score - old.score, new.shown)
        for old, new in pairs
        if old.score is not None and new.score is not None
    ]
    if len(known) < LEAST_TASKS:
        return None
    found = estimate_mean([gain for gain, _ in known], seed=0, bounds=DIFFERENCES, looks=LOOKS)
    lost = sorted((row for row in known if row[0] < 0), key=lambda row: row[0])
    return None if found is None else measured(found, behind=tuple(shown for _, shown in lost))


def canary_accuracy(reader: RunReader, iteration: int) -> Signal | None:
    """The share of an iteration's canaries that was judged right, of those that were read."""
    read = [
        float(each.is_right) for each in read_canaries(reader.folder, iteration) if each.found is not None
    ]
    found = estimate_mean(read, seed=0, looks=LOOKS)
    return None if found is None else measured(found)


def audited(reader: RunReader, iteration: int) -> Mapping[str, Signal | None]:
    """What the run's audit found; it belongs to the newest iteration that it looked at."""
    report = read_audit(reader.folder)
    return audit_values(report) if report is not None and report.iteration == iteration else {}


_AUDITED = {
    AGREE[AuditWay.AGAIN]: "judge_agreement",
    FIRST_PLACE: "position_bias",
    LENGTH: "length_bias",
    UNREAD: "judge_unread",
}
"""Signals, by the checks of an audit that they are."""


def audit_values(report: AuditReport) -> dict[str, Signal]:
    """The signals of an audit; nothing is said without an interval, and of drifts the most certain is told."""
    found: dict[str, Signal] = {}
    for name, share in report.checks.items():
        what, _, about = name.partition(": ")
        signal = "judge_drift" if what == DRIFT else _AUDITED.get(name)
        if signal is not None and share.low is not None and share.high is not None:
            own = measured(share, about)
            found[signal] = max(found.get(signal, own), own, key=_distance_from_none)
    return found


def _distance_from_none(change: Signal) -> float:
    """How far the whole interval is from 0; below 0 where it holds 0."""
    assert change.interval is not None
    return max(change.interval[0], -change.interval[1])
