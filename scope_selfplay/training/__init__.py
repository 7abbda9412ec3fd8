"""GRPO on both roles. The only package with torch, transformers and trl, all imported when training starts.

Reading order: `grpo` (one training, and in it one step from rollouts to weights) - `job` (what it is given) -
`challenger`, `solver` (a role's rollouts and rewards) - `rows`, `losses` (what is trained on, how it counts; pure) -
`batches` (tensors) - `generation` (what samples, and TRL's settings) - `policy`, `trained_model`, `checkpoints`
(models on disk) - `ranks`, `launching` (several processes). Independent of these: `warm_start`, `token_lint`.
"""
