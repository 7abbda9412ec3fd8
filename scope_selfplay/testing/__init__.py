"""Fakes for tests of this library and of what is built on it, and for rehearsals; nothing of a run imports them.

- `fake_cluster.FakeCluster`: a Kubernetes API in memory, with injected faults (`ApiFault`), a Role and quotas.
- `fake_nodes.FakeNodes`: the pods on a node of that cluster; `SimulatedStages` publishes the manifests of stages.
- `random_policy`: a tiny model that writes random well-formed episodes (`scope rehearsal-policy`).
"""
