"""A real model of 135M parameters asks itself about the World Factbook, without a label: `make bench-self-play`.

`traces` (the supervised start), `results` (what an arm keeps), `page` (tables of docs/how/evidence/real-model.md).
"""
