"""Fakes for tests of this library and of what is built on it; nothing in the product imports them.

- `fake_cluster.FakeCluster`: a Kubernetes API in memory, with injected faults (`ApiFault`), a Role and quotas.
- `fake_nodes.FakeNodes`: the pods on a node of that cluster; `SimulatedStages` publishes the manifests of stages.
- `chat_server.FakeServer`: a chat endpoint that answers by a script and fails as it is told to (`FaultPlan`). A policy
  that follows a script is `scope_selfplay.inference.ScriptedModel`.
- `random_encoder.write_random_encoder`: a BERT folder with random weights, by default in the shape of E5-base.
- `random_policy`: a tiny model that writes random well-formed episodes (`scope rehearsal-policy`).
"""
