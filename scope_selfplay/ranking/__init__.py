"""From comparisons to strengths, and from strengths to rewards: numbers only, no judge and no text.

`matches` says what a topology is; `topologies` and `balanced` are the designs, `shares` and `balanced` fit strengths,
`driver` plays a topology against a judge. All are pure but `driver`, which awaits the caller's judge. Sources:
Tournament-GRPO, ArenaRL, Reasoning Arena; `balanced` is ours.
"""
