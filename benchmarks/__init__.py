"""Measurements that take longer than a test. Each module is a command: `python -m benchmarks.<name>`."""
