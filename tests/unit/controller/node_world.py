"""A machine with two GPUs that are none, and programs that do next to nothing: what a driver on one node starts here.

    python -m tests.unit.controller.node_world ROOT

drives the run `r1` of ROOT to its end, with real keepers, ports, probes and signals.
"""

import os
import sys
from pathlib import Path
from typing import Any

from scope_selfplay.driver.local import drive_node, read_slots
from scope_selfplay.driver.parts import Inputs
from scope_selfplay.plan.placement import place
from scope_selfplay.store.folder import RunFolder
from tests.unit.controller.worlds import ONE, config_of

NODE: dict[str, Any] = ONE | {
    "model": {"path": "embedded", "engine": "vllm_colocated", "deterministic": False},
    "cluster": {"judge": {"model": "embedded"}, "retriever": {"serve": False}},
}
NVIDIA_SMI = """#!/bin/sh
case $1 in
*used*) echo 0, 61000, 81559, 93; echo 1, 0, 81559, 0;;
*) echo 0, 81559; echo 1, 81559;;
esac
"""
VLLM = f"""#!{sys.executable}
import os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
# A worker, in a session of its own as an engine's.
subprocess.Popen(["sleep", "999"], start_new_session=True)
if (Path(__file__).parent / "silent").exists():
    time.sleep(999)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *what): pass
print("on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""
JOBS = """
import subprocess, sys, time
from pathlib import Path
from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.store.folder import Stage
from scope_selfplay.testing.fake_nodes import SimulatedStages
command, options = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
subprocess.Popen(["sleep", "999"], start_new_session=True)
marks = Path(__file__).parent
print("at work", flush=True)
while (marks / "holds").exists():
    time.sleep(0.05)
if (marks / "fails").exists():
    (marks / "fails").unlink()
    sys.exit("what it said last")
stage = next(stage for stage in Stage if stage.job_name == command)
SimulatedStages(Path(options["--root"]), "r1").publish(RunStage(int(options["--iteration"]), stage), "a job")
"""


def install(home: Path) -> dict[str, str]:
    """The environment in which the programs are found."""
    programs = home / "bin"
    programs.mkdir()
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("vllm", VLLM)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (home / "jobs").mkdir()
    (home / "jobs" / "__init__.py").touch()
    (home / "jobs" / "__main__.py").write_text(JOBS)
    (home / "runs" / "r1").mkdir(parents=True)
    (home / "runs" / "r1" / "run.yaml").touch()
    path = os.pathsep.join([str(home), *sys.path])
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": path}


if __name__ == "__main__":
    placement = place(config_of(NODE), read_slots("auto"))
    inputs = Inputs(placement.config, "0123456789abcdef", ())
    run = RunFolder(Path(sys.argv[1]) / "r1")
    sys.exit(drive_node(inputs, run, placement, lambda text: print(text, file=sys.stderr, flush=True)))
