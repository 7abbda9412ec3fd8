"""Run folders for a cluster: written from a config, checked before and on the cluster, followed while they run.

`render`, `check`, `status`, `fetch` and `doctor` are the commands of `cli`. Pure: `objects` (what the controller will
create, what selectors mean), `patches` and `prepare` (parts of a run's folder), `check_references`. `kubectl` is the
one place that talks to a cluster, through the program of this name and nothing else: whatever these commands do can
be done with it alone.
"""
