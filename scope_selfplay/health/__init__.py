"""Is the self-play still healthy? Signals per iteration, each with the bounds outside of which it warns.

    with RunReader(path) as reader:
        for checkup in examine(reader):
            for signal in checkup.signals:
                print(checkup.iteration, signal.title, signal.value, signal.warning)

`diversity` (near duplicates, how far tasks lie apart) - `searches` (are the Challenger's searches needed) -
`drift` (topics, lengths) - `checkup` (everything together, with bounds). All from records; nothing is asked of a
judge again.
"""

from scope_selfplay.health.checkup import BOUNDS, Bounds, Checkup, Signal, examine
from scope_selfplay.health.costs import judge_account

__all__ = ["BOUNDS", "Bounds", "Checkup", "Signal", "examine", "judge_account"]
