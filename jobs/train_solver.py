"""Stage C: GRPO of the Solver from S_{N-1} on the kept tasks.

python -m jobs.train_solver --config FILE --root FOLDER --iteration N [--attempt A]
    [--processes P] [--set KEY=VALUE ...]
"""

from jobs.stage_job import run_job, training_job
from scope_selfplay.store.folder import Stage

main = training_job(Stage.SOLVER, "Stage C: GRPO of the Solver from S_{N-1} on the kept tasks.")

if __name__ == "__main__":
    run_job(main, "train_solver")
