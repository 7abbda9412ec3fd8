"""The one table of signals: what each is called, where it is healthy, and what an unhealthy value often means.

A signal with an interval warns only where the whole interval is outside of its bounds. docs/corpus.md has the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scope_selfplay.gates import GATES

LEAST_TASKS = 20
"""Signals that compare tasks or answers by their words, and those with intervals, say nothing about fewer."""


@dataclass(frozen=True)
class Bounds:
    """What a signal is called, its unit, where it is healthy, and what an unhealthy value often means."""

    title: str
    unit: str
    low: float | None = None
    high: float | None = None
    meaning: str = ""


_TASKS: Mapping[str, Bounds] = {
    "acceptance": Bounds("candidates kept", "share", 0.1, None, "most of the generation is thrown away"),
    "target_share": Bounds(
        "tasks of tasks.target",
        "share",
        1.0,
        None,
        "documents or candidates ran out, so the Solver trains fewer steps",
    ),
    "mean_score": Bounds(
        "mean score of tried tasks", "0-1", 0.3, 0.7, "tasks have left the Solver's frontier (0.5)"
    ),
    **{
        gate.label: Bounds(f"pass the {gate} gate", "share", terms.healthy_share, None, terms.low_share_means)
        for gate, terms in GATES.items()
    },
    "unresolved": Bounds("unresolved by a fault", "share", None, 0.05, "the judge or the search fails"),
    "judge_failures": Bounds("verdicts that failed", "share", None, 0.02, "see the judge's log"),
    "judge_noise": Bounds(
        "verdicts spoilt on purpose",
        "share",
        None,
        0.0,
        "judge.noise is set; nothing of this run says what the method does with an honest judge",
    ),
    "suspect_tasks": Bounds(
        "tasks suspect of injection",
        "share",
        None,
        0.01,
        "the Challenger has begun to write to judges or policies",
    ),
    "suspect_documents": Bounds(
        "documents suspect of injection", "share", None, 0.01, "the corpus holds texts that speak to models"
    ),
    "duplicates": Bounds("near duplicates", "share", None, 0.1, "the Challenger repeats itself"),
    "distance": Bounds("distance to the nearest task", "0-1", 0.1, None, "tasks follow one pattern"),
    "task_patterns": Bounds("patterns of task", "equally frequent ones"),
    "common_pattern": Bounds(
        "tasks of the commonest pattern", "share", None, 0.5, "the Challenger asks one thing"
    ),
    "pattern_growth": Bounds(
        "patterns of task against iteration 1", "times", 0.5, None, "tasks become more alike"
    ),
    "opening_growth": Bounds(
        "openings of tasks against iteration 1", "times", 0.5, None, "tasks begin to ask for the same"
    ),
    "phrase_rise": Bounds(
        "tasks with a phrase, more than in iteration 1",
        "share",
        None,
        0.5,
        "the Challenger repeats it, in whatever else it asks",
    ),
    "topic_drift": Bounds(
        "topic drift since iteration 1", "bits", None, 0.2, "the tasks' subjects have moved"
    ),
    "searches_needed": Bounds(
        "searches that a rubric needs", "share", 0.3, None, "tasks can be answered without them"
    ),
    "passage_gain": Bounds(
        "score gained by an evidence passage", "0-1", 0.0, None, "finding evidence does not help"
    ),
    "searches_made": Bounds("searches made for an accepted task", "searches"),
    "fewer_searches": Bounds(
        "accepted tasks with fewer searches than were assigned",
        "share",
        None,
        0.2,
        "they are counted as what they are, and ask less than they were meant to",
    ),
    "task_words": Bounds("words in a task", "words"),
    "task_growth": Bounds(
        "words in a task against iteration 1",
        "times",
        0.5,
        2.0,
        "tasks change in length, perhaps not in difficulty",
    ),
    "unmet_demands": Bounds(
        "tasks with a demand that no criterion meets",
        "share",
        None,
        0.1,
        "they ask for what their documents do not hold, and answering it earns nothing",
    ),
    "unfounded_criteria": Bounds(
        "tasks with a criterion without evidence",
        "share",
        None,
        0.1,
        "no document that was found holds what the criterion asks for",
    ),
    "repeated_criterion": Bounds(
        "rubrics with the same unasked criterion",
        "share",
        None,
        0.5,
        "it can be met without reading the task, so a habit pays",
    ),
}

_ANSWERS: Mapping[str, Bounds] = {
    "asked_score": Bounds("asked criteria that held-out answers meet", "share"),
    "hidden_score": Bounds("hidden criteria that held-out answers meet", "share"),
    "solver_gain": Bounds(
        "held-out score against the Solver that it was trained from", "0-1", 0.0, None, "the Solver is worse"
    ),
    "asked_gain": Bounds(
        "asked criteria met against the Solver that it was trained from",
        "share",
        0.0,
        None,
        "what is asked is answered less well",
    ),
    "kind_gain": Bounds(
        "gain over S_0 from one kind of unasked criterion",
        "0-1",
        None,
        0.6,
        "what is asked hardly improves (0: its share of the criteria, 1: all of the gain)",
    ),
    "pattern_gain": Bounds(
        "gain over S_0 from one criterion",
        "0-1",
        None,
        0.6,
        "one habit was learnt (0: its share of the criteria, 1: all of the gain)",
    ),
    "certain_criteria": Bounds(
        "held-out criteria that nearly all answers meet",
        "share",
        None,
        0.25,
        "they tell no two answers apart",
    ),
    "repeated_sentences": Bounds(
        "held-out answers that say a sentence twice", "share", None, 0.2, "repetition is not punished"
    ),
    "repeats_growth": Bounds(
        "held-out answers that say a sentence twice, above S_0's",
        "share",
        None,
        0.1,
        "repetition is being learnt",
    ),
    "suspect_answers": Bounds(
        "answers suspect of injection", "share", None, 0.01, "the Solver has begun to write to its judge"
    ),
    "answer_words": Bounds("words in a held-out answer", "words"),
    "answer_growth": Bounds(
        "held-out answers against S_0's", "times", 0.5, 2.0, "length is being learnt, not content"
    ),
    "idle_growth": Bounds(
        "length against S_0's answers where what is asked is not answered better",
        "times",
        None,
        1.2,
        "the words that were added do not answer the task",
    ),
    "length_correlation": Bounds(
        "correlation of length and score among answers to one task",
        "-1-1",
        None,
        0.8,
        "the length decides the score",
    ),
}

_TRAINING: Mapping[str, Bounds] = {
    "same_score": Bounds(
        "tried tasks whose rollouts all score alike", "share", None, 0.5, "they teach nothing"
    ),
    "rubric_spread": Bounds(
        "spread of the scores under one rubric",
        "0-1",
        0.1,
        None,
        "rubrics hardly tell answers apart",
    ),
    "zero_variance": Bounds(
        "Solver's training groups without variance", "share", None, 0.5, "steps without gradient"
    ),
    "zero_variance_challenger": Bounds(
        "Challenger's training groups without variance", "share", None, 0.5, "steps without gradient"
    ),
    "calls_per_task": Bounds("judge calls for an accepted task", "calls"),
    "tokens_per_task": Bounds("judge tokens for an accepted task", "tokens"),
    "trained_tokens_per_task": Bounds("tokens sampled in training for an accepted task", "tokens"),
    "seconds_per_task": Bounds("seconds for an accepted task", "s"),
    "gpu_hours": Bounds("GPU-hours of the finished stages", "h"),
}

_JUDGE: Mapping[str, Bounds] = {
    "canary_accuracy": Bounds(
        "canaries judged right", "share", 0.9, None, "the judge errs where the right verdict is known"
    ),
    "judge_agreement": Bounds(
        "judgements that agree when asked again", "share", 0.85, None, "much of what is rewarded is chance"
    ),
    "reworded_agreement": Bounds(
        "judgements that agree when asked in other words", "share", 0.8, None, "the prompt's wording decides"
    ),
    "position_bias": Bounds(
        "what being shown first adds to a win",
        "-1-1",
        -0.05,
        0.05,
        "the place decides comparisons; ask in both orders",
    ),
    "length_bias": Bounds(
        "what words that say nothing add to a verdict", "-1-1", -0.05, 0.05, "the judge goes by length"
    ),
    "judge_drift": Bounds(
        "change in the share met by the same answers", "-1-1", -0.1, 0.1, "the judge is not the one it was"
    ),
    "judge_unread": Bounds(
        "judgements asked again that cannot be read",
        "share",
        None,
        0.02,
        "what it refuses to judge is masked",
    ),
}

BOUNDS: Mapping[str, Bounds] = {**_TASKS, **_ANSWERS, **_TRAINING, **_JUDGE}
