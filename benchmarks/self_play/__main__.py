"""A real model asks itself, on two cores: the tables of docs/how/evidence/real-model.md.

    python -m benchmarks.self_play [--seeds 1 2 3] [--arms ARM ...] [--jobs 2] [--root FOLDER] [--tiny]

Needs `scope models smollm2`. Arms of a seed share a supervised start from 64 scripted traces, and train their Solver
for as many steps; then all are asked the questions about countries that nobody was trained on. Killed at any moment,
the same command goes on. What is finished is kept in benchmarks/self_play/kept, and not made again where it lies there:
sittings on different machines add up. --tiny goes through all of it in minutes and keeps its figures below the root.

    ROOT/start-N/policy/                the supervised start, C_0 and S_0, of start-N/traces.jsonl
    ROOT/full/given/                    passages, training and held-out questions
    ROOT/full/seed-N/ARM/               the run
    ROOT/full/seed-N/answers-HASH.jsonl what the Solver with these weights answered to the held-out questions
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.options import read_options
from benchmarks.scope_command import ROOT
from benchmarks.self_play.arms import ARMS, make_arm, write_given
from benchmarks.self_play.page import sections, write_page
from benchmarks.self_play.results import KEPT


def main() -> None:
    given = {"seeds": [1, 2, 3], "jobs": 2, "root": ROOT / "bench-out" / "self-play", "tiny": False}
    options = read_options(__doc__, choices={"arms": tuple(ARMS)}, **given)
    root = options.root.resolve() / ("tiny" if options.tiny else "full")
    place = (root, root / "kept" if options.tiny else KEPT, options.tiny)
    write_given(root / "given")
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        made = [pool.submit(make_arm, *place, seed, arm) for seed in options.seeds for arm in options.arms]
        for each in made:
            each.result()
    if not options.tiny:
        write_page()
    print("\n\n".join(sections(place[1]).values()))


if __name__ == "__main__":
    main()
