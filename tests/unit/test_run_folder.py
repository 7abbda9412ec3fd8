"""Run directories and model directories: what is refused, what goes on, and that nothing is written over."""

import json
import os
from pathlib import Path

import pytest
import yaml

from scope_selfplay.base.errors import CheckpointError, ConfigError, RunMismatchError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, CandidateStatus, Provenance, Reason
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import GivenQuestion, candidate_of
from scope_selfplay.run.run import Run
from scope_selfplay.stages.train import tasks_to_train_on
from scope_selfplay.stages.work import run_stage, stage_sources, write_documents
from scope_selfplay.store.files import write_records
from scope_selfplay.store.folder import Stage, StageFolder

PACK = Path(__file__).parents[2] / "prompts" / "embedded"


def small_run(model: Path, root: Path, *overrides: str) -> Run:
    settings = ("domain=embedded", "corpus.sample=16", "name=tiny")
    return open_run(load_config(None, [*settings, f"model.path={model}", *overrides]), root, Progress())


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_new_run_keeps_config_prompts_and_corpus(model: Path, tmp_path: Path) -> None:
    run = small_run(model, tmp_path / "runs")
    assert {each.name for each in run.folder.path.iterdir()} == {"run.yaml", "prompts", "corpus.jsonl"}
    assert load_config(run.folder.config) == run.config
    assert len(run.documents) == 16 + 160
    assert sum(each.source == "held-out" for each in run.documents) == 160


def test_the_same_command_opens_the_same_run(model: Path, tmp_path: Path) -> None:
    first = small_run(model, tmp_path)
    before, inode = files_below(first.folder.path), first.folder.config.stat().st_ino
    assert files_below(small_run(model, tmp_path).folder.path) == before
    assert first.folder.config.stat().st_ino == inode, "run.yaml was written again"


def test_addresses_that_end_with_a_job_are_not_written_into_the_runs_settings(
    model: Path, tmp_path: Path
) -> None:
    run = small_run(model, tmp_path)
    before = files_below(run.folder.path)
    config = load_config(run.folder.config, ["search.url=http://r1-retriever:8000"])
    opened = open_run(config, tmp_path, Progress(), record=False)
    assert opened.config.search.url == "http://r1-retriever:8000"
    assert files_below(run.folder.path) == before


def test_a_run_may_go_further_than_it_was_begun_for(model: Path, tmp_path: Path) -> None:
    small_run(model, tmp_path, "iterations=1")
    run = small_run(model, tmp_path, "iterations=2", "stop_after=1")
    assert load_config(run.folder.config).iterations == 2


@pytest.mark.parametrize(
    ("begun", "change"),
    [
        ("seed=0", "seed=5"),
        ("seed=0", "solver.kl_beta=0.1"),
        ("tasks.search_turns={1: 1, 2: 1}", "tasks.search_turns={1: 1}"),
        ("tasks.search_turns={1: 1}", "tasks.search_turns={1: 1, 2: 1}"),
        ("solver.reward=arenarl", "solver.reward=rubric"),
        ("solver.reward=balanced", "solver.reward={design: balanced, meetings: 7}"),
    ],
)
def test_another_config_is_refused_with_the_settings_name(
    model: Path, tmp_path: Path, begun: str, change: str
) -> None:
    before = files_below(small_run(model, tmp_path, begun).folder.path)
    name = change.partition("=")[0]
    if name == "solver.kl_beta":
        # The Challenger trains as the Solver does.
        name = "challenger.kl_beta, solver.kl_beta"
    with pytest.raises(RunMismatchError, match=rf"belongs to another config \(changed: {name}\)"):
        small_run(model, tmp_path, change)
    assert files_below(tmp_path / "tiny") == before


def test_a_run_of_an_earlier_version_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    config = small_run(model, tmp_path).folder.config
    settings = yaml.safe_load(config.read_text())
    settings["judge"]["gate_call"] = settings["judge"]["calls"].pop("gates")
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    before = files_below(tmp_path / "tiny")
    with pytest.raises(
        RunMismatchError, match=r"by an earlier version of scope \(judge.gate_call has another name"
    ):
        small_run(model, tmp_path)
    assert files_below(tmp_path / "tiny") == before


@pytest.mark.parametrize("content", ["", "\n", "\0\0\0"])
def test_an_emptied_run_yaml_is_called_empty(model: Path, tmp_path: Path, content: str) -> None:
    config = small_run(model, tmp_path).folder.config
    config.write_text(content)
    with pytest.raises(ConfigError, match=r"run\.yaml: is empty, expected the settings .* restore the file"):
        small_run(model, tmp_path)
    assert config.read_text() == content


def test_other_prompts_are_refused(model: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    for file in set(PACK.iterdir()) - {PACK / "kustomization.yaml"}:
        (pack / file.name).write_bytes(file.read_bytes())
    before = files_below(small_run(model, tmp_path, f"domain={pack}").folder.path)
    solver = pack / "solver.md"
    solver.write_text(solver.read_text().replace("Task:", "The task:"))
    with pytest.raises(RunMismatchError, match="was begun with prompts"):
        small_run(model, tmp_path, f"domain={pack}")
    assert files_below(tmp_path / "tiny") == before


@pytest.mark.parametrize("content", ["seed: [", "- a", "sede: 1", "name: tiny\nseed: x"])
def test_a_damaged_run_yaml_is_one_line_and_not_written_over(
    model: Path, tmp_path: Path, content: str
) -> None:
    config = small_run(model, tmp_path).folder.config
    config.write_text(content)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        small_run(model, tmp_path)
    assert config.read_text() == content


def test_a_folder_of_somebody_else_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny" / "prompts").mkdir(parents=True)
    (tmp_path / "tiny" / "prompts" / "mine.md").write_text("mine")
    with pytest.raises(RunMismatchError, match=r"has files but no run\.yaml"):
        small_run(model, tmp_path)
    assert (tmp_path / "tiny" / "prompts" / "mine.md").read_text() == "mine"


@pytest.mark.parametrize("left", [(), ("prompts",), ("prompts", "corpus.jsonl")])
def test_a_run_that_was_killed_while_it_was_begun_begins_again(
    model: Path, tmp_path: Path, left: tuple[str, ...]
) -> None:
    whole = files_below(small_run(model, tmp_path).folder.path)
    folder = tmp_path / "tiny"
    for name in whole:
        if Path(name).parts[0] not in left:
            (folder / name).unlink()
    (folder / ".beginning").touch()
    assert files_below(small_run(model, tmp_path).folder.path) == whole


def test_given_tasks_without_an_accepted_one_are_refused(model: Path, tmp_path: Path) -> None:
    provenance = Provenance(run="r", iteration=1, stage="tasks", document_id="d")
    rejected = Candidate(
        id="c", status=CandidateStatus.REJECTED, reason=Reason.NO_TASK, provenance=provenance
    )
    write_records(tmp_path / "given.jsonl", [rejected])
    with pytest.raises(ConfigError, match="holds 1 candidates and none that is accepted"):
        small_run(model, tmp_path / "runs", f"solver.tasks={tmp_path / 'given.jsonl'}")


@pytest.mark.parametrize(
    "change",
    ["solver.reward=verifier", "solver.routing=verifier", "solver.reward={design: verifier, check: boxed}"],
)
def test_a_verifier_without_right_answers_is_refused_before_anything_is_written(
    model: Path, tmp_path: Path, change: str
) -> None:
    name = change.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{name}: a verifier .* the Challenger's tasks have none; give"):
        small_run(model, tmp_path / "runs", change)
    given = tmp_path / "given.jsonl"
    answered = candidate_of(GivenQuestion(question="1 + 1", answer="2"))
    assert answered.task is not None
    bare = answered.model_copy(
        update={"task": answered.task.model_copy(update={"id": "bare", "reference": None})}
    )
    write_records(given, [answered, bare])
    with pytest.raises(ConfigError, match=rf"{name}: .* 1 of 2 tasks have none \(the first is bare\)"):
        small_run(model, tmp_path / "runs", change, f"solver.tasks={given}")
    assert not (tmp_path / "runs").exists()
    write_records(given, [answered])
    run = small_run(model, tmp_path / "runs", change, f"solver.tasks={given}")
    # The answers are taken out after the run was begun.
    write_records(given, [bare])
    with pytest.raises(ConfigError, match="1 of 1 tasks have none"):
        tasks_to_train_on(run, 1)


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("solver.reward.check", "solver.reward={design: verifier, check: exact}"),
        ("solver.routing.check", "solver.routing={by: verifier, check: exact}"),
    ],
)
def test_whole_texts_are_not_compared_where_the_solver_boxes_its_answer(
    model: Path, tmp_path: Path, setting: str, change: str
) -> None:
    """Before, every right answer got 0 without a word."""
    given = tmp_path / "given.jsonl"
    given.write_text('{"question": "1 + 1", "answer": "2"}\n')
    overrides = [f"solver.tasks={given}", "domain=math", change]
    with pytest.raises(ConfigError, match=rf"{setting}: exact .* the math pack .* use boxed") as caught:
        small_run(model, tmp_path / "runs", *overrides)
    assert "\n" not in str(caught.value) and not (tmp_path / "runs").exists()
    assert small_run(
        model, tmp_path / "runs", *overrides[:2], change.replace("exact", "auto")
    ).folder.config.exists()


def test_a_task_type_that_the_pack_leaves_out_can_be_named(model: Path, tmp_path: Path) -> None:
    run = small_run(model, tmp_path, "domain=wikipedia", "tasks.types=[creative_writing]")
    sources = stage_sources(run, 1, Stage.TASKS, 4)
    assert {source.task_type for source in sources} == {"creative_writing"}


def test_stages_share_no_document(model: Path, tmp_path: Path) -> None:
    run = small_run(model, tmp_path)
    first = stage_sources(run, 1, Stage.CHALLENGER, 6)
    names = [source.document.id for source in first]
    training = run.folder.stage(1, Stage.CHALLENGER)
    training.path.mkdir(parents=True)
    write_documents(training, names)
    second = stage_sources(run, 1, Stage.TASKS, 10)
    assert len(second) == 10 and not set(names) & {source.document.id for source in second}
    assert not any(source.document.source == "held-out" for source in first + second)
    held_out = stage_sources(run, 0, Stage.TASKS, 16)
    assert all(source.document.source == "held-out" for source in held_out)
    assert stage_sources(run, 1, Stage.CHALLENGER, 6) == first


WEIGHTS, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"config.json": None}, r"no config\.json"),
        ({"tokenizer_config.json": None}, r"no tokenizer_config\.json"),
        (
            {WEIGHTS: None, PICKLED: ""},
            r"found pytorch_model\.bin, which is pickled code; save the model as safetensors",
        ),
        (
            {WEIGHTS: None, PICKLED: "", "rotary.safetensors": "beside"},
            r"found pytorch_model\.bin, which is pickled code",
        ),
        (
            {WEIGHTS: None, "adapter_model.safetensors": ""},
            r"found adapter_model\.safetensors, expected model\.safetensors or model\.safetensors\.index",
        ),
        (
            {WEIGHTS: None, PICKLED: "", INDEX: '{"weight_map": {"lm_head": "pytorch_model.bin"}}'},
            r"index\.json: names 'pytorch_model\.bin' as weights, expected safetensors",
        ),
        (
            {WEIGHTS: None, INDEX: '{"weight_map": {"lm_head": "../other/model.safetensors"}}'},
            r"names '\.\./other/model\.safetensors' as weights",
        ),
        ({WEIGHTS: None, INDEX: "{}"}, "names '' as weights"),
        ({WEIGHTS: None}, "found no weights; save the model as safetensors"),
        (
            {"config.json": '{"auto_map": {"AutoModel": "evil.Model"}}'},
            r"config\.json has auto_map, which runs foreign code",
        ),
        (
            {"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["evil.T", null]}}'},
            r"tokenizer_config\.json has auto_map",
        ),
        ({"config.json": "\xff\xfe\0"}, r"config\.json is not a JSON object"),
        ({"config.json": "[]"}, r"config\.json is not a JSON object"),
        ({"tokenizer_config.json": '{"broken": '}, r"tokenizer_config\.json is not a JSON object"),
    ],
)
def test_a_directory_that_is_not_a_safe_model_is_refused(
    model: Path, files: dict[str, str | None], complaint: str
) -> None:
    for name, content in files.items():
        if content is None:
            (model / name).unlink()
        else:
            (model / name).write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=complaint):
        policy_path(str(model))


BROKEN = {
    "no model_type": ("config.json", b"{}", "no model_type, expected the model's family"),
    "cut off": ("model.safetensors", slice(0, -1), r"a damaged one \([\d,]+ bytes\)"),
    "cut in the header": ("model.safetensors", slice(0, 20), "not a safetensors file, or a damaged one"),
    "nothing of the weights": ("model.safetensors", b"", r"a damaged one \(0 bytes\)"),
    "no tensors": ("model.safetensors", b"\2\0\0\0\0\0\0\0{}", "damaged one"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_model_is_found_before_its_runs_name_is_taken(
    model: Path, tmp_path: Path, damage: str
) -> None:
    name, content, complaint = BROKEN[damage]
    file, whole = model / name, (model / name).read_bytes()
    file.write_bytes(whole[content] if isinstance(content, slice) else content)
    with pytest.raises(CheckpointError, match=complaint) as caught:
        small_run(model, tmp_path / "runs")
    assert ";" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()
    file.write_bytes(whole)
    assert small_run(model, tmp_path / "runs").folder.config.exists()


def test_weights_in_parts_are_all_there_or_refused(model: Path, tmp_path: Path) -> None:
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors").rename(model / parts["a"])
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    with pytest.raises(
        CheckpointError, match=r"names 'model-00002-of-00002\.safetensors' as weights, expected"
    ):
        small_run(model, tmp_path / "runs")
    index.write_text("{")
    with pytest.raises(CheckpointError, match=r"index\.json is not a JSON object"):
        small_run(model, tmp_path / "runs")
    index.write_text(json.dumps({"weight_map": parts}))
    (model / parts["b"]).write_bytes((model / parts["a"]).read_bytes())
    assert small_run(model, tmp_path / "runs").folder.config.exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "damage", "complaint"),
    [
        ("tokenizer.json", '{"broken": ', "no usable tokenizer .*; save the tokenizer again"),
        ("tokenizer.json", "no tags", r"the tokenizer reads .* back as .., and the qwen2\.5 dialect"),
        ("chat_template.jinja", "none", "no chat template beside the tokenizer, .*; use an instruct model"),
    ],
)
def test_a_broken_tokenizer_is_found_before_its_runs_name_is_taken(
    model: Path, tmp_path: Path, name: str, damage: str, complaint: str
) -> None:
    pytest.importorskip("transformers", reason="needs the train extra")
    file = model / name
    match damage:
        case "none":
            file.unlink()
        case "no tags":
            file.write_text(file.read_text().replace('"special": false', '"special": true'))
        case _:
            file.write_text(damage)
    with pytest.raises(CheckpointError, match=complaint):
        small_run(model, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_seconds_of_a_stage_hold_those_of_a_killed_attempt(model: Path, tmp_path: Path) -> None:
    run = small_run(model, tmp_path)
    folder = run.folder.stage(0, Stage.TASKS)

    def dies(made: StageFolder) -> None:
        write_records(made.candidates, [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stage(run, 0, Stage.TASKS, dies)
    for file in folder.path.rglob("*"):
        os.utime(file, (1000, 1000))
    os.utime(folder.candidates, (1500, 1500))
    done = run_stage(run, 0, Stage.TASKS, lambda made: None)
    assert 500 <= done.seconds < 900
