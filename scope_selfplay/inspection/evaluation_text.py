"""An evaluation as text: one item down to its answers and verdicts, two checkpoints side by side."""

from collections.abc import Iterator

from scope_selfplay.benchmarking.reading import (
    EvaluationReader,
    ItemRecord,
    ScoredAnswer,
    in_order_of_change,
)
from scope_selfplay.errors import RecordError, did_you_mean
from scope_selfplay.inspection.text import verdict_word
from scope_selfplay.schemas import Verdict
from scope_selfplay.untrusted_text import one_line, printable


def between(reader: EvaluationReader, one: str, other: str, limit: int) -> Iterator[str]:
    """The items on which two checkpoints differ most, a line each with tabs between cells."""
    for name in (one, other):
        if name not in reader.checkpoints:
            there = ", ".join(reader.checkpoints)
            raise RecordError(
                f"{name}: has no answers here{did_you_mean(name, reader.checkpoints)}; there are {there}"
            )
    yield "\t".join(("item", one, other, "change", "question"))
    for row in in_order_of_change(reader.items((one, other)), one, other)[:limit]:
        numbers = (row.scores[one], row.scores[other], row.gain(one, other))
        cells = ("" if number is None else f"{number:.3f}" for number in numbers)
        yield "\t".join((row.item.id, *cells, one_line(row.item.question)))


def describe_item(record: ItemRecord, *, passages: bool = False) -> Iterator[str]:
    """The question, what a good answer holds, then every answer with its verdicts."""
    item = record.item
    yield f"{item.id}  {printable(item.group)}".rstrip()
    yield from (f"  {line}" for line in printable(item.question).splitlines())
    for title, lines in (
        ("right", item.answers),
        ("asked", [f"{each.text} ({each.points:g})" for each in item.criteria]),
        ("given", [item.given] if item.given else []),
    ):
        yield from (f"  {title:8} {one_line(line)}" for line in lines)
    for scored in record.answers:
        yield from _answer(scored, passages=passages)
    for met in record.comparisons:
        outcome = "no verdict" if met.outcome is None else f"{met.outcome.first:g} : {met.outcome.second:g}"
        by = "" if met.criterion is None else f", by {one_line(item.criteria[met.criterion].text)}"
        yield f"\n== {printable(met.first)} against {printable(met.second)}{by}: {outcome}"
        yield from _verdict(met.verdict, "")


def _answer(scored: ScoredAnswer, *, passages: bool) -> Iterator[str]:
    answer, rollout = scored.answer, scored.answer.rollout
    yield (
        f"\n== {printable(answer.checkpoint)}, answer {answer.sample + 1}: {rollout.status.value}, "
        f"{rollout.searches} searches, {answer.tokens:,} tokens"
    )
    if rollout.error:
        yield f"  failed   {printable(rollout.error)}"
    for turn in rollout.turns:
        if turn.query is not None:
            yield f"  search   {one_line(turn.query)}"
            for passage in turn.passages:
                text = f"{passage.title}: {passage.text}" if passages else passage.title
                yield f"  found    {one_line(text)}"
    yield from (f"  answer   {line}" for line in printable(rollout.answer or "(none)").splitlines())
    for score in scored.scores:
        value = "no score" if score.value is None else f"{score.value:.3f}"
        label = f" {score.label}" if score.label else ""
        judge = f" by {score.judge}" if score.judge else ""
        yield f"  {value:8} {score.scorer}{label}{judge}"
        for number, verdict in enumerate(score.verdicts, start=1):
            yield from _verdict(verdict, f"{number}.")


def _verdict(verdict: Verdict, number: str) -> Iterator[str]:
    yield f"    {number:3} {verdict_word(verdict):6} {one_line(verdict.reasoning)}".rstrip()
