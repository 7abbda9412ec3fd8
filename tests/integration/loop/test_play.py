"""A person in the policy's place, over a real run: the run's prompts, searches, budgets and judge; records of use."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import UserError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, CandidateStatus, Rollout
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.run.run import Run
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.warm_start import warm_start_rows
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.human import HumanFolder
from scope_selfplay.store.reader import RunReader

SETTINGS = "model.processes=1 compare.given=null compare.tasks=3 corpus.sample=200 name=played".split()


def opened(root: Path) -> Run:
    return open_run(load_config(DEFAULT_CONFIG, SETTINGS), root, Progress())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    make_tasks(opened(root), 0)
    return root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    """A run that has made its held-out tasks and nothing else."""
    return opened(shutil.copytree(made, tmp_path / "runs"))


def play(run: Run, *words: str, replies: list[str]) -> Result:
    file = run.folder.path / "replies.txt"
    file.write_text("\n".join(reply.replace("\n", "\\n") for reply in replies) + "\n")
    return CliRunner().invoke(cli, ["play", *words, "--answers", str(file), "--person", "ann"])


def solve(run: Run, *words: str, replies: list[str]) -> Result:
    return play(run, "solver", "--run", str(run.folder.path), *words, replies=replies)


def held_out(run: Run) -> list[Candidate]:
    made = read_records(run.folder.stage(0, Stage.TASKS).candidates, Candidate)
    return [each for each in made if each.status is CandidateStatus.ACCEPTED]


def test_a_person_searches_answers_and_is_graded_as_the_solver(run: Run) -> None:
    candidate, *others = held_out(run)
    assert candidate.task is not None and candidate.rubric is not None
    known = run.documents[0].title
    replies = [f"Where to begin?\n/search {known}", "/answer It is not known.", "n"]
    done = solve(run, "--task", candidate.task.id, replies=replies)
    assert done.exit_code == 0, done.output
    human = HumanFolder(run.folder)
    (rollout,) = human.answers_to(candidate.task.id, 0)
    assert rollout.checkpoint == "human" and rollout.searches == 1 and rollout.answer == "It is not known."
    assert rollout.turns[0].passages and rollout.turns[0].thinking == "Where to begin?"
    grade = human.grades()[rollout.id]
    assert len(grade.verdicts) == len(candidate.rubric.criteria) and grade.score == 0.0
    assert known in done.stdout and "score: 0.000" in done.stdout
    # Answers to held-out tasks are not learnt from.
    assert warm_start_rows(Run(run.config, run.folder, run.pack), min_score=0.0).learnt == 0
    # Without a task the next one comes that nobody has answered.
    for other in others:
        done = solve(run, replies=["/answer This.", "n"])
        assert done.exit_code == 0 and other.task is not None and other.task.id in done.stdout
    assert isinstance(solve(run, replies=["/answer This.", "n"]).exception, UserError)


def test_an_answer_becomes_a_reference_of_given_held_out_tasks(run: Run) -> None:
    assert solve(run, replies=["/answer A reference.", "y"]).exit_code == 0
    file = HumanFolder(run.folder).tasks(0).candidates
    (candidate,) = read_given_tasks(str(file), "compare.given")
    assert candidate.task is not None and candidate.task.reference == "A reference."
    out = run.folder.path / "exported"
    done = CliRunner().invoke(cli, ["export", str(file.parents[2]), "--format", "inspect", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads((out / "test.jsonl").read_text())["target"] == "A reference."


def test_a_task_that_a_person_writes_is_judged_tried_answered_and_learnt_from(run: Run) -> None:
    """What C_0 wrote, and the judge accepted, is written again."""
    stage = run.folder.stage(0, Stage.TASKS)
    writers = {rollout.id: rollout for rollout in read_records(stage.rollouts, Rollout)}
    candidate = held_out(run)[0]
    assert candidate.task is not None
    queries = [turn.query for turn in writers[candidate.challenger_rollout_id].turns if turn.query]
    replies = [f"What is next?\n/search {query}" for query in queries]
    replies.append(f"All is known.\n/task {candidate.task.text}")
    options = ["--document", candidate.provenance.document_id, "--turns", str(len(queries)), "--tries", "2"]
    done = play(run, "challenger", "--run", str(run.folder.path), *options, replies=replies)
    assert done.exit_code == 0, done.output
    human = HumanFolder(run.folder)
    (made,) = human.candidates()
    assert made.status is CandidateStatus.ACCEPTED, done.stdout
    assert made.gates and made.provenance.challenger == "human"
    assert made.provenance.prompt_hash == run.pack.hash
    assert made.task is not None and made.rubric is not None
    tried = {rollout.id: rollout.checkpoint for rollout in human.rollouts()}
    assert len(made.rollout_ids) == 2 and made.mean is not None
    assert all(tried[name].startswith("S_0") for name in made.rollout_ids)
    answered = solve(run, "--task", made.task.id, replies=["/answer It is not known.", "n"])
    assert answered.exit_code == 0, answered.output
    rows = warm_start_rows(Run(run.config, run.folder, run.pack), min_score=0.0)
    assert (rows.learnt, rows.refused) == (4, 0), "the task's conversation, two tries and the answer"
    with RunReader(human.path) as reader:
        assert [line.id for line in reader.tasks().lines if line.iteration == 1] == [made.id]
