"""What the pods of a run run; see `python -m jobs --help`."""
