"""`k8s/runs/short` from a folder that nobody prepared, through every stage and without a judge: both partners are a
script behind the completions wire, and what is trained is the policy that ships.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Candidate, CandidateStatus, Grade, Reason
from scope_selfplay.cli import cli
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.report.record import show_list
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.reader import RunReader
from tests.loopback import Reply, Seen, loopback

CONFIG = Path(__file__).resolve().parents[3] / "k8s/runs/short/run.yaml"
TOWNS = {f"{name}stad": f"{name}beek" for name in "Alm Bel Cor Dorn Elm Fen Gelt Hol Ind Jol Kel Lom".split()}
SILENT = [f"{name}stad" for name in "Mer Nor Oud Pol Rand Sor Tol Val".split()]
"""Of their pages the Challenger asks what they do not tell."""
SMALL = """
    model.dialect=qwen2.5 model.engine=in_process model.lora_rank=0 model.slots=4 iterations=1
    challenger.steps=1 challenger.batch=2 challenger.group_size=2 challenger.rollouts=2
    challenger.max_prompt=1500 challenger.max_response=700 tasks.target=4 tasks.low=0 tasks.high=1
    solver.steps=1 solver.batch=1 solver.group_size=2 solver.max_prompt=1500 solver.max_response=700
    tasks.largest_share=1 compare.tasks=2
""".split()


def says(prompt: str, seed: int) -> str:
    """As Challenger, as Solver, who is right every other time, and as reader, who finds what is there."""
    if "one question for a quiz" in prompt:
        town = re.findall(r"\w+stad", prompt)[0]
        if "Now write the question" not in prompt:
            return f"<think>Look.</think><search>{town}</search>"
        return (
            f"<think>Ask.</think><task>Which river runs through {town}? | {TOWNS.get(town, 'Rhine')}</task>"
        )
    town, searches = re.findall(r"through (\w+)\?", prompt)[-1], "Look up what you need" in prompt
    if searches and "[1]" not in prompt:
        return f"<think>Look.</think><search>{town}</search>"
    is_right = f"{town} is a town" in prompt and (seed % 2 == 0 or not searches)
    return f"<think>So.</think><answer>{TOWNS[town] if is_right else 'nobody knows'}</answer>"


@contextmanager
def policies(root: Path) -> Iterator[list[str]]:
    """The settings of a run below the folder whose policies are the script, each time the newest checkpoint."""
    policy = root / "policy"
    policy.mkdir()
    for file in policy_path("embedded").iterdir():
        (policy / file.name).write_bytes(file.read_bytes())
    shape = json.loads((policy / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (policy / "config.json").write_text(json.dumps(shape))
    codec = ChatCodec.load(policy)

    def answer(seen: Seen) -> Reply:
        if seen.path.endswith("/models"):
            trained = root / "short/iteration-01" / seen.path.split("/")[1] / "checkpoint"
            served = {"id": "script", "root": str(trained if trained.exists() else policy)}
            return Reply(json.dumps({"data": [served]}).encode())
        if not seen.path.endswith("/completions"):
            return Reply(status=404)
        body = json.loads(seen.body)
        ids = codec.encode_tag(says(codec.decode(body["prompt"]), body["seed"]))
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}, "finish_reason": "stop"}
        return Reply(json.dumps({"choices": [choice]}).encode())

    with loopback(answer) as (port, _):
        urls = {role: f"http://127.0.0.1:{port}/{role}/v1" for role in ("challenger", "solver")}
        yield [f"model.path={policy}", *(f"partners.{role}.base_url={url}" for role, url in urls.items())]


def write_pages(folder: Path, *towns: str) -> None:
    folder.mkdir()
    for town in towns:
        river = TOWNS.get(town, "sea, which has no name here")
        text = f"# {town}\n\n{town} is a town of the plain. It lies by the {river}, 40 km from the border.\n"
        (folder / f"{town.lower()}.md").write_text(text)


def scope(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False)
    return done.exit_code, done.output


def run_of(root: Path, settings: list[str]) -> list[object]:
    given = [*SMALL, f"corpus.path={root / 'pages'}", *settings]
    return ["--config", CONFIG, "--root", root, *(word for each in given for word in ("--set", each))]


def test_a_folder_that_nobody_prepared_becomes_questions_whose_answers_stand_in_it(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages", *TOWNS, SILENT[0])
    with policies(tmp_path) as settings:
        asked = run_of(tmp_path, settings)
        code, said = scope("preflight", *asked)
        assert code == 0 and "kind verifier, in this process" in said and "exam" not in said, said
        code, said = scope("run", *asked)
        assert code == 0, said[-2000:]
    run = RunFolder(tmp_path / "short")
    stages = [run.stage(number, Stage.TASKS) for number in (0, 1)]
    made = [each for stage in stages for each in read_records(stage.candidates, Candidate)]
    assert {each.reason for each in made} <= {Reason.ACCEPTED, Reason.NO_SPAN}
    texts = {row["id"]: row["text"] for row in read_rows(run.corpus)}
    for each in made:
        task = each.task
        assert task is not None
        if each.status is CandidateStatus.ACCEPTED:
            assert task.span is not None and task.reference == TOWNS[task.text.split()[-1].rstrip("?")]
            assert texts[task.document_id][slice(*task.span)] == task.reference
    # Held-out tasks are tried by no Solver, and so read by none.
    accepted = [each for each in made if each.rollout_ids]
    assert len(accepted) == 4
    assert all([one.f1 for one in each.readings] == [1.0] * 4 + [0.0] * 2 for each in accepted)
    assert "alike" in read_rows(run.stage(1, Stage.CHALLENGER).metrics)[0]
    scores = {each.score for each in read_records(run.stage(1, Stage.COMPARE).grades, Grade)}
    assert scores <= {0.0, 1.0}

    one = accepted[-1]
    assert one.task is not None and one.task.span is not None and one.task.reference is not None
    code, said = scope("tasks", "ls", run.path)
    assert code == 0 and one.task.text in said and f"\t{one.task.reference}\t{list(one.task.span)}" in said
    begin, end = one.task.span
    console = Console(record=True, width=120, file=StringIO())
    with RunReader(run.path) as reader:
        show_list(reader.tasks(TaskQuery()), console)
    assert (
        f"{one.task.reference} (characters {begin} to {end} of {one.task.document_id})"
        in console.export_text()
    )
    code, said = scope("tasks", "show", run.path, one.id)
    assert f"Reference answer, characters {begin} to {end} of its document" in said
    assert "Reader with passages open: F1 1.00" in said and "Reader from memory: F1 0.00" in said


def test_documents_without_a_usable_answer_end_the_run_in_a_line(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages", *SILENT)
    with (
        policies(tmp_path) as settings,
        pytest.raises(CorpusError, match=r"0 of 4 candidates were accepted, .* \(no_span 4\)") as caught,
    ):
        scope("run", *run_of(tmp_path, [*settings, "compare.tasks=1"]))
    assert "\n" not in str(caught.value)
