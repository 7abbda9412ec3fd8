"""The controller of a run on Kubernetes: one Job after the other, each with the servers that it needs beside it.

Read in this order. Pure: `names`, `servers`, `pods`, `manifests` (what objects look like), `observed` (what the API
shows), `outcomes` (the table of failures), `ledger` and `histories` (what was tried), `waiting` (what is waited for),
`goals` and `plan` (what is next).
To the world: `api` and `client` (one way to ask), `cluster` (the real API server), `leadership` (one controller at a
time), `markers` (the volume), `rounds` and `loop` (the process). For tests: `scope_selfplay.testing`.
"""

from scope_selfplay.controller.api import VERBS
from scope_selfplay.controller.loop import Inputs, control

__all__ = ["VERBS", "Inputs", "control"]
