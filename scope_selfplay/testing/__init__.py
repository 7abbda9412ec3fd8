"""Stand-ins for what a test or a benchmark cannot have: models, clusters, servers. Nothing in the product imports them.

- `random_encoder`: a BERT folder with random weights in the shape of E5, as Hugging Face writes one.
"""
