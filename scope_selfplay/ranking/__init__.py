"""From comparisons to strengths, and from strengths to rewards: numbers only, no judge and no text.

Reading order: `matches` (what a topology is, and rewards from strengths), `topologies`, `brackets`, `rounds`,
`circulant` (the designs), `shares` and `margins` (two ways to fit strengths), `routing` (who needs a tournament),
`driver` (plays a topology against a judge). All are pure but `driver`, which awaits the caller's judge. Sources:
Tournament-GRPO, ArenaRL, Reasoning Arena; `balanced` is ours.
"""
