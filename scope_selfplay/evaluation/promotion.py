"""What follows from a comparison: the next iteration starts from the new Solver, from the old one, or not at all.

Pure: `decide_promotion` over differences between checkpoints, whichever evidence they come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scope_selfplay.config import CompareConfig
from scope_selfplay.store.ratings import CheckpointDifference, Decision

Gain = Callable[[str, str], CheckpointDifference | None]
"""How far the first checkpoint lies above the second; None where nothing compares them."""


@dataclass(frozen=True)
class PromotionDecision:
    """`promoted`: whether S_t replaces the checkpoint that it was trained from; a stop decides that, too."""

    decision: Decision
    promoted: bool
    reason: str


def decide_promotion(settings: CompareConfig, starts: Sequence[str], gain: Gain) -> PromotionDecision:
    """Decide on S_t from t `starts`, the checkpoints that iterations 1 to t were trained from."""
    if not starts:
        return PromotionDecision(Decision.PROMOTE, True, "S_0 is where training starts")
    newest, start = f"S_{len(starts)}", starts[-1]
    found = gain(newest, start)
    evidence = _described(newest, start, found, settings)
    if settings.stop == "worse" and _is_worse(found, settings):
        return PromotionDecision(Decision.STOP, False, f"{evidence}; compare.stop is worse")
    promoted = _is_promoted(found, settings)
    if _is_stuck(settings, starts, gain):
        first = starts[-(settings.patience or 1)]
        reason = f"{evidence}; none of the last {settings.patience} is better than {first} (compare.patience)"
        return PromotionDecision(Decision.STOP, promoted, reason)
    reason = f"{evidence}; compare.promotion is {settings.promotion}"
    return PromotionDecision(Decision.PROMOTE if promoted else Decision.KEEP, promoted, reason)


def _is_promoted(found: CheckpointDifference | None, settings: CompareConfig) -> bool:
    match settings.promotion:
        case "always":
            return True
        case "not_worse":
            return not _is_worse(found, settings)
        case "better":
            return _is_better(found, settings)


def _is_stuck(settings: CompareConfig, starts: Sequence[str], gain: Gain) -> bool:
    """None of the last k Solvers is better than what the first of them was trained from.

    Measured from there, so that many gains too small to show one by one still count together. What could not be
    compared does not count as a standstill.
    """
    patience = settings.patience
    if patience is None or len(starts) < patience:
        return False
    before = starts[-patience]
    found = [gain(f"S_{number}", before) for number in range(len(starts) - patience + 1, len(starts) + 1)]
    return not any(each is None or _is_better(each, settings) for each in found)


def _is_better(found: CheckpointDifference | None, settings: CompareConfig) -> bool:
    return found is not None and found.low > settings.margin


def _is_worse(found: CheckpointDifference | None, settings: CompareConfig) -> bool:
    return found is not None and found.high < -settings.margin


def _described(newest: str, start: str, found: CheckpointDifference | None, settings: CompareConfig) -> str:
    if found is None:
        return f"nothing compares {newest} with {start}"
    if _is_better(found, settings):
        kind = "better than"
    elif _is_worse(found, settings):
        kind = "worse than"
    else:
        kind = "not told apart from"
    numbers = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{newest} is {kind} {start}: {numbers} over {found.tasks} tasks"
