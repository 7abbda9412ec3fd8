"""Groups of latent qualities before a noisy judge: how well each design of the ranking package recovers them.

Reading order: `judge` (one call), `sessions` (one group), `designs` (what is compared), `fidelity` (how it is
measured), `front` and `chart` (how it is shown).
"""
