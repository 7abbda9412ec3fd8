"""The end of an evaluation: its records in order, as parquet too; the result, and a card."""

from collections.abc import Iterator

from pydantic import BaseModel

from scope_selfplay.benchmarking.card import evaluation_card
from scope_selfplay.benchmarking.records import (
    Answer,
    ContestantRecord,
    EvaluationFolder,
    sort_lines,
)
from scope_selfplay.evaluation.benchmark import LoadedBenchmark
from scope_selfplay.evaluation.items import AnswerFacts, AnswerScore
from scope_selfplay.evaluation.results import EvaluationResult, evaluation_result
from scope_selfplay.evaluation.win_rates import PairVerdict
from scope_selfplay.schemas import RolloutStatus
from scope_selfplay.store import write_atomic
from scope_selfplay.store.card import CARD
from scope_selfplay.store.files import stream_records
from scope_selfplay.store.parquet import write_columns

RESAMPLES = 2000
_LOOKED_UP: dict[type[BaseModel], tuple[str, ...]] = {
    Answer: ("id", "item_id"),
    AnswerScore: ("answer_id", "item_id"),
    PairVerdict: ("item_id",),
}


def finish(folder: EvaluationFolder, loaded: LoadedBenchmark, *, seed: int) -> EvaluationResult:
    """Put everything in order and write what readers need; `result.json` last."""
    contestants = [each.name for each in stream_records(folder.contestants, ContestantRecord)]
    order_records(folder, loaded, contestants)
    result = evaluation_result(
        loaded,
        contestants,
        list(facts_in(folder)),
        list(stream_records(folder.scores, AnswerScore)),
        list(stream_records(folder.comparisons, PairVerdict)),
        seed=seed,
        resamples=RESAMPLES,
    )
    for path, model in (
        (folder.answers, Answer),
        (folder.scores, AnswerScore),
        (folder.comparisons, PairVerdict),
    ):
        if path.exists():
            write_columns(path, path.with_suffix(".parquet"), model, looked_up=_LOOKED_UP[model])
    spec = folder.read_spec()
    assert spec is not None
    write_atomic(folder.path / CARD, evaluation_card(folder.path, spec, result))
    write_atomic(folder.result, result.model_dump_json(indent=1) + "\n")
    return result


def order_records(folder: EvaluationFolder, loaded: LoadedBenchmark, contestants: list[str]) -> None:
    """Contestant by contestant, item by item, sample by sample; of a score that was made twice the last one stays."""
    names = {name: number for number, name in enumerate(contestants)}
    items = {item.id: number for number, item in enumerate(loaded.items)}
    places: dict[tuple[int, int, int], str] = {}
    for answer in stream_records(folder.answers, Answer):
        places[names[answer.checkpoint], items[answer.item_id], answer.sample] = answer.id
    answers = [places[place] for place in sorted(places)]
    sort_lines(folder.answers, Answer, lambda answer: answer.id, answers)
    scores = {_score_place(score) for score in stream_records(folder.scores, AnswerScore)}
    row = {answer: number for number, answer in enumerate(answers)}
    ordered = sorted(scores, key=lambda place: (row.get(place[0], -1), place))
    sort_lines(folder.scores, AnswerScore, _score_place, ordered)
    pairs = {_pair_place(pair) for pair in stream_records(folder.comparisons, PairVerdict)}
    met = sorted(pairs, key=lambda place: (row.get(place[0], -1), row.get(place[1], -1), place))
    sort_lines(folder.comparisons, PairVerdict, _pair_place, met)


def facts_in(folder: EvaluationFolder) -> Iterator[AnswerFacts]:
    for answer in stream_records(folder.answers, Answer):
        status = answer.rollout.status
        yield AnswerFacts(
            answer_id=answer.id,
            item_id=answer.item_id,
            checkpoint=answer.checkpoint,
            sample=answer.sample,
            answered=status is RolloutStatus.FINISHED and answer.rollout.answer is not None,
            truncated=status is RolloutStatus.TRUNCATED,
            failed=status is RolloutStatus.FAILED,
            searches=answer.rollout.searches,
            tokens=answer.tokens,
            context=answer.context,
        )


def _score_place(score: AnswerScore) -> tuple[str, str, str]:
    return (score.answer_id, score.scorer, score.judge)


def _pair_place(pair: PairVerdict) -> tuple[str, str, int, str]:
    return (pair.first_id, pair.second_id, -1 if pair.criterion is None else pair.criterion, pair.judge)
