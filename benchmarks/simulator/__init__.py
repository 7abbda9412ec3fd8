"""Groups of latent qualities before a noisy judge: how well each design of the ranking package recovers them.

Reading order: `designs` (what is compared, before which judge), `fidelity` (how it is measured).
"""
