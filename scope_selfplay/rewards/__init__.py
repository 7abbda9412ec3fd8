"""The papers' equations, and answers that a rule verifies.

Pure. What a judge says of a group is in `designs`.
"""
