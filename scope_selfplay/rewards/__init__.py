"""The papers' equations, answers that a rule verifies, and problems with such answers.

Pure. What a judge says of a group is in `designs`.
"""
