"""What one GPU can show in ten minutes, part by part, with random weights: `make prove-gpu`.

`prove` runs the table of `part`, each part in a process of its own, and writes a line a part. `scales` holds the
shapes: those of Qwen3, or tiny ones in which every part runs on a CPU. Nothing comes from outside.

`role_steps`, `sharded_steps`, `colocated_steps` and `episode_steps` hold the parts themselves; `bundle` packs them for
a machine that has torch alone.
"""
