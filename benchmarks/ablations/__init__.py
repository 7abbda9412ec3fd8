"""The papers' ablations on the embedded world.

`studies` is the table of them, `arms` makes their runs, `measures` reads these; `python -m` tells what was found.
"""
