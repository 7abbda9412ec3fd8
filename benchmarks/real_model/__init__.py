"""A pretrained model of 135M parameters learns to search and answer, on two cores (docs/how/evidence/real-model.md).

`traces` (what the supervised start learns from) -> `results` (what is kept of a seed's folder) -> `page` (the tables).
"""
