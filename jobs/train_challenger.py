"""Stage A: GRPO of the Challenger from C_{N-1} against the frozen Solver S_{N-1}.

python -m jobs.train_challenger --config FILE --root FOLDER --iteration N [--attempt A]
    [--processes P] [--set KEY=VALUE ...]
"""

from jobs.stage_job import run_job, training_job
from scope_selfplay.store.folder import Stage

main = training_job(
    Stage.CHALLENGER, "Stage A: GRPO of the Challenger from C_{N-1} against the frozen Solver S_{N-1}."
)

if __name__ == "__main__":
    run_job(main, "train_challenger")
