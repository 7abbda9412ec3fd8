"""Whether the tests bite: one deliberate fault after the other, where silent ones cost most (`make mutants`).

    python -m tests.mutants [--count 300] [--seed 1] [--processes 2] [--only WORD ...] [--folder build/mutants]

A mutant is a module with one change: an operator, a number, a named argument, a `raise` or a call that is gone. A seed
draws the same ones for as long as the modules stay. Each meets the tests of its subject in a fork of a process that has
imported all of them, and there alone its functions are changed; processes that tests start have it in a package that is
linked together for them. What was killed is kept in FOLDER/killed, so that the same command goes on; what survived is
tried again. 300 take about ten minutes on two quiet cores.

Most changes are mutmut's, less those of texts, of values into None, which any test would notice, and of `strict`, by
which `zip` asserts what its callers keep to. Its own runner passes over every class with a decorator: most of ours.
"""

import inspect
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import unified_diff
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType, ModuleType
from typing import Any

import libcst as cst
import pytest
from mutmut.mutation import mutators
from pydantic import BaseModel

from benchmarks.forked import fork_server
from benchmarks.markdown import markdown
from benchmarks.options import read_options
from benchmarks.scope_command import ROOT

SUBJECTS = {
    "rewards.equations rewards.measures": "unit/rewards unit/reward_designs",
    "rewards.verify": "unit/rewards/test_text_match.py unit/maths integration/maths/test_verifier.py",
    "ranking.matches ranking.balanced ranking.topologies ranking.driver": "unit/ranking unit/reward_designs",
    "training.loss training.passes": "unit/training integration/loop/test_rows_in_training.py "
    "integration/loop/test_forward_pass.py",
    "stages.tasks stages.compare run.candidate": "unit/run/test_candidate.py unit/stages unit/maths "
    "unit/inspection/test_summary.py "
    "integration/loop/test_comparison_stage.py",
    "prompts.file prompts.folder prompts.pack prompts.roles": "unit/prompts",
}
"""Modules of the library, and what speaks about them in tests."""
GOAL, LIMIT = 0.9, 180.0
"""The least share that is killed; seconds for the tests of one mutant."""
PASSED_OVER = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
NEEDLESS = (mutators.operator_string, mutators.operator_assignment, mutators.operator_arg_removal)
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changed(node: cst.CSTNode) -> list[cst.CSTNode]:
    changes = [change for kind, change in mutators.mutation_operators if isinstance(node, kind)]
    found = [other for change in changes if change not in NEEDLESS for other in change(node)]
    match node:
        case cst.Name(value=name) if name in SWAPPED:
            found.append(cst.Name(SWAPPED[name]))
        case cst.Call(args=arguments):
            named = [each for each in arguments if each.keyword and each.keyword.value != "strict"]
            found += [
                node.with_changes(args=[each for each in arguments if each is not one]) for one in named
            ]
        case cst.Raise() | cst.Expr(value=cst.Call() | cst.Await()):
            found.append(cst.Pass())
    return found


def nodes_in(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What may be changed; the words of an error are not looked into."""
    strict = isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"
    if not isinstance(node, PASSED_OVER) and not strict:
        yield node
        for child in () if isinstance(node, cst.Raise) else node.children:
            yield from nodes_in(child)


def drawn(subject: str, seed: int) -> Iterator[tuple[str, str, str]]:
    """A module, its code, and the same with a change: one of each place, in random order."""
    rng, library = random.Random(f"{seed}/{subject}"), ROOT / "scope_selfplay"
    files = {name: library / f"{name.replace('.', '/')}.py" for name in subject.split()}
    trees = [(name, cst.parse_module(file.read_bytes())) for name, file in files.items()]
    places = [(name, tree, node) for name, tree in trees for node in nodes_in(tree)]
    for name, tree, node in rng.sample(places, len(places)):
        if others := changed(node):
            yield name, tree.code, tree.deep_replace(node, rng.choice(others)).code


def preload() -> None:
    pytest.main(["--collect-only", "-qq", *(path for subject in SUBJECTS for path in tests_of(subject))])


def tests_of(subject: str) -> list[str]:
    return [f"tests/{each}" for each in SUBJECTS[subject].split()]


def run(arguments: Sequence[str]) -> None:
    """In a fork: tests, with the code that a file holds in the place of a module's own."""
    name, file, *tests = arguments
    module, fresh = import_module(f"scope_selfplay.{name}"), ModuleType(f"scope_selfplay.{name}")
    fresh.__file__ = str(module.__file__)
    exec(compile(Path(file).read_bytes(), fresh.__file__, "exec"), vars(fresh))
    change(module, fresh)
    with TemporaryDirectory() as folder:
        link_package(Path(folder), name, Path(file))
        # The folder that a process is started in would go before it, and so would the root that pytest puts first.
        os.environ |= {
            "PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)]),
            "PYTHONSAFEPATH": "1",
        }
        options = ["-x", "--hypothesis-seed=0", "--import-mode=append", "-o", f"pythonpath={folder}"]
        codes = (pytest.main([*options, each]) for each in tests)
        code = next(filter(None, codes), 0)
    sys.exit(code)


def link_package(folder: Path, name: str, file: Path) -> None:
    """The checkout in `folder`, with `file` in the place of one module."""
    whole, own = ROOT, folder
    for part in ("scope_selfplay", *name.split(".")):
        own.mkdir(exist_ok=True)
        for each in whole.iterdir():
            if each.stem not in (part, "__pycache__"):
                (own / each.name).symlink_to(each)
        whole, own = whole / part, own / part
    own.with_suffix(".py").symlink_to(file)


def change(old: Any, fresh: Any) -> None:
    """Functions stay those that others have imported, and do what the fresh ones do."""
    for name, value in list(vars(fresh).items()):
        was = vars(old).get(name)
        function, other = bare(was), bare(value)
        if isinstance(function, FunctionType) and isinstance(other, FunctionType):
            function.__code__, function.__defaults__ = other.__code__, other.__defaults__
            function.__kwdefaults__ = other.__kwdefaults__
        elif isinstance(was, type) and was is not value:
            change(was, value)
        # What a file may hold; of values there has to be one class.
        elif name == "__pydantic_validator__" and old.__bases__ == (BaseModel,):
            setattr(old, name, value)
        elif isinstance(old, ModuleType) and not name.startswith("__") and repr(was) != repr(value):
            for module in [each for each in sys.modules.values() if vars(each).get(name) is was]:
                setattr(module, name, value)


def bare(value: Any) -> Any:
    """What a property, a command, a method of the class or a cached function calls."""
    held = (getattr(value, name, None) for name in ("fget", "callback", "func"))
    inner = next(filter(None, held), value)
    return inspect.unwrap(getattr(inner, "__func__", inner))


def outcome_of(command: Sequence[str], log: Path) -> str:
    """`killed`, `survived` or `timed out`; what the tests have started ends with them."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, process_group=0)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT)
        code = process.poll()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert code not in (4, 5), log.read_text()
    return "timed out" if code is None else "killed" if code else "survived"


def tried(subject: str, count: int, seed: int, folder: Path, command: Sequence[str]) -> list[tuple[str, str]]:
    """The outcome and the difference of each mutant of a subject."""
    file, log = (folder / f"{subject.split()[0]}{suffix}" for suffix in (".py", ".log"))

    def outcome_with(name: str, code: str) -> str:
        file.write_text(code)
        return outcome_of([*command, name, str(file), *tests_of(subject)], log)

    mutants, found = list(islice(drawn(subject, seed), count)), list[tuple[str, str]]()
    for name, whole in {name: whole for name, whole, _ in mutants}.items():
        assert outcome_with(name, whole) == "survived", log.read_text()
    for name, whole, code in mutants:
        killed = folder / "killed" / sha256(code.encode()).hexdigest()
        outcome = killed.read_text() if killed.exists() else outcome_with(name, code)
        if outcome != "survived":
            killed.write_text(outcome)
        lines = [text.splitlines(True) for text in (whole, code)]
        found.append((outcome, "".join(unified_diff(*lines, name, name, n=1))))
        print(f"{outcome}: {len(found)} of {count}, {name}", file=sys.stderr)
    return found


def main() -> None:
    asked = read_options(__doc__, count=300, seed=1, processes=2, only=[], folder=ROOT / "build" / "mutants")
    subjects = [each for each in SUBJECTS if not asked.only or any(word in each for word in asked.only)]
    folder, share = asked.folder.resolve(), -(-asked.count // len(subjects))
    (folder / "killed").mkdir(parents=True, exist_ok=True)
    (folder / "forks").unlink(missing_ok=True)
    # What fails here is no example for the next run of the tests.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    with fork_server("tests.mutants", folder) as command, ThreadPoolExecutor(asked.processes) as pool:
        work = partial(tried, count=share, seed=asked.seed, folder=folder, command=command)
        found = dict(zip(subjects, pool.map(work, subjects), strict=True))
    found["all"] = [each for subject in subjects for each in found[subject]]
    rows = [["modules", *(heads := ("killed", "timed out", "survived"))]]
    for subject, outcomes in found.items():
        counts = Counter(outcome for outcome, _ in outcomes)
        rows.append([subject, *(str(counts[head]) for head in heads)])
    survivors = [difference for outcome, difference in found["all"] if outcome == "survived"]
    print(*survivors, markdown(rows), sep="\n")
    sys.exit(1 if len(survivors) > (1 - GOAL) * len(found["all"]) else 0)


if __name__ == "__main__":
    main()
