"""`scope judge audit`: judgements that a run has paid for are asked again, in other ways, and held against each other.

- `judgements`: a sample of what was judged, from a run's records
- `asking`: one judgement asked again in one way
- `findings`: what follows from all of them (pure)
- `auditing`: judges, budget and files; `cli`: the command
"""
