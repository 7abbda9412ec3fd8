"""The stages of an iteration: each reads folders, writes one folder, and publishes its manifest last.

    make_held_out (iteration 0) -> train_challenger -> make_tasks -> train_solver -> compare

A stage whose manifest.json exists is not run again. A stage that was killed goes on: task making keeps every
finished candidate, training goes on from its newest checkpoint.
"""
