#!/bin/bash
# A run on one exclusive node of a Slurm queue: sbatch examples/slurm.sh run.yaml [--set KEY=VALUE ...]
#
# Shortly before the time limit the run is told to end, saves, and the job goes back into the queue; so it does when
# something outside is down (75) and when the node is drained or preempted (143). The same command goes on.
#SBATCH --job-name=scope
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

config=${1:?usage: sbatch examples/slurm.sh run.yaml [options of scope run]}
shift

scope run --config "$config" --root "${SCOPE_RUNS:-runs}" --gpus "${SCOPE_GPUS:-auto}" "$@" &
run=$!
# Bash runs a trap between two commands: `wait` ends at the signal, and is called again for the exit code.
trap 'kill -TERM "$run"' TERM INT
wait "$run"
code=$?
while kill -0 "$run" 2>/dev/null; do
    wait "$run"
    code=$?
done

case $code in
75 | 143)
    echo "ended with $code: back into the queue"
    # A short wait, so that what is down has time to come back.
    if [ "$code" = 75 ]; then sleep "${SCOPE_PAUSE:-60}"; fi
    scontrol requeue "$SLURM_JOB_ID"
    ;;
esac
exit "$code"
