"""The controller of a run on Kubernetes: one Job after the other, each with the servers that it needs beside it.

How the next Job is decided, pure: `plan` first, then `attempts`, `waiting` and `plan_parts`.
What is decided about: `plan_parts` (the steps of a run, and which the volume shows as done), `observed` (what the API
shows).
What is written: `manifests` (names and common parts), `servers`, `stage_jobs`.
To the world: `api` (how the API is asked), `cluster` (the real API server), `leadership` (one controller at a time),
`loop` (the process). A cluster in memory for tests: `scope_selfplay.testing.fake_cluster`.
"""
