"""Benchmarks, scorers and ratings: `scope eval`, and the comparison of checkpoints on held-out tasks."""
