"""Run directories and model directories: what is refused, what goes on, and that nothing is written over."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from scope_selfplay.base.errors import CheckpointError, ConfigError, PromptError, RunMismatchError, UserError
from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.run.begin import open_run, renamed_run, say_changes
from scope_selfplay.run.given import GivenQuestion, candidate_of
from scope_selfplay.run.run import Run
from scope_selfplay.stages.train import tasks_to_train_on
from scope_selfplay.stages.work import stage_sources, write_documents
from scope_selfplay.store.files import write_records
from scope_selfplay.store.folder import RunFolder, Stage

ANOTHER = "another --name begins one with these"


def small_run(model: Path, root: Path, *overrides: str) -> Run:
    settings = ("domain=embedded", "corpus.sample=16", "name=tiny")
    return open_run(load_config(None, [*settings, f"model.path={model}", *overrides]), root, Progress())


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def refused(error: type[UserError], said: str, model: Path, root: Path, *overrides: str) -> None:
    """The run is refused in one line, and nothing of what was there is written over."""
    before = files_below(root)
    with pytest.raises(error, match=said) as caught:
        small_run(model, root, *overrides)
    assert "\n" not in str(caught.value) and files_below(root) == before


def test_a_new_run_keeps_config_prompts_and_corpus_and_the_same_command_opens_it(
    model: Path, tmp_path: Path
) -> None:
    run = small_run(model, tmp_path)
    assert {each.name for each in run.folder.path.iterdir()} == {"run.yaml", "prompts", "corpus.jsonl"}
    assert load_config(run.folder.config) == run.config
    assert len(run.documents) == 16 + 160
    assert sum(each.source == "held-out" for each in run.documents) == 160
    before, inode = files_below(run.folder.path), run.folder.config.stat().st_ino
    assert files_below(small_run(model, tmp_path).folder.path) == before
    assert run.folder.config.stat().st_ino == inode, "run.yaml was written again"
    # Addresses that end with a job are not written into the run's settings.
    config = load_config(run.folder.config, ["search.url=http://r1-retriever:8000"])
    opened = open_run(config, tmp_path, Progress(), record=False)
    assert opened.config.search.url == "http://r1-retriever:8000"
    assert files_below(run.folder.path) == before
    assert load_config(run.folder.config).iterations == 3
    further = small_run(model, tmp_path, "iterations=4", "stop_after=1")
    assert load_config(further.folder.config).iterations == 4


def test_a_run_goes_on_with_the_prompts_in_it_where_its_pack_lies_elsewhere_now(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "packs").mkdir()
    pack = Path(shutil.copytree(pack_path("embedded"), tmp_path / "packs" / "mine"))
    (pack / "kustomization.yaml").unlink()
    run = small_run(model, tmp_path, f"domain={pack}")
    pack.rename(tmp_path / "packs" / "yours")
    assert small_run(model, tmp_path, f"domain={pack}").pack == run.pack
    pack.mkdir()
    refused(PromptError, "domain.yaml", model, tmp_path, f"domain={pack}")
    moved = RunFolder(run.folder.path.rename(tmp_path / "renamed"))
    assert renamed_run(run.config, tmp_path) == moved.path
    said: list[str] = []
    shutil.copytree(pack_path("wikipedia"), pack, dirs_exist_ok=True)
    (pack / "kustomization.yaml").unlink()
    opened = open_run(load_config(moved.config), tmp_path, LineProgress(said.append), folder=moved)
    say_changes(opened)
    assert (opened.pack, opened.folder.path) == (run.pack, moved.path)
    assert said[-1].endswith(f"mine: other prompts since the run began; the run keeps its own, {ANOTHER}")
    assert not run.folder.path.exists()


@pytest.mark.parametrize(
    ("begun", "change", "named"),
    [
        ("seed=0", "seed=5", "seed"),
        ("solver.reward=balanced", "solver.reward={design: balanced, meetings: 7}", "solver.reward"),
    ],
)
def test_another_config_is_refused_with_the_settings_name(
    model: Path, tmp_path: Path, begun: str, change: str, named: str
) -> None:
    small_run(model, tmp_path, begun)
    said = rf"belongs to another config \(changed: {named}\)"
    refused(RunMismatchError, said, model, tmp_path, change)


def test_a_run_of_an_earlier_version_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    config = small_run(model, tmp_path).folder.config
    settings = yaml.safe_load(config.read_text())
    settings["judge"]["gate_call"] = settings["judge"]["calls"].pop("gates")
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    refused(ConfigError, r"run\.yaml: unknown setting judge\.gate_call; did you mean", model, tmp_path)


@pytest.mark.parametrize(
    ("content", "said"), [("\0\0\0", r"run\.yaml: is empty, expected"), ("seed: [", r"run\.yaml")]
)
def test_a_damaged_run_yaml_is_one_line_and_not_written_over(
    model: Path, tmp_path: Path, content: str, said: str
) -> None:
    small_run(model, tmp_path).folder.config.write_text(content)
    refused(ConfigError, said, model, tmp_path)


def test_a_folder_of_somebody_else_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny" / "prompts").mkdir(parents=True)
    (tmp_path / "tiny" / "prompts" / "mine.md").write_text("mine")
    refused(RunMismatchError, r"has files but no run\.yaml", model, tmp_path)


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


@pytest.mark.parametrize("change", ["solver.reward=verifier", "solver.routing=verifier"])
def test_a_verifier_without_right_answers_is_refused_before_anything_is_written(
    model: Path, tmp_path: Path, change: str
) -> None:
    name, given = change.partition("=")[0], tmp_path / "given.jsonl"
    said = rf"{name}: a verifier .* the Challenger's tasks of type [a-z_, ]+ have none; give"
    refused(ConfigError, said, model, tmp_path, change)
    answered = candidate_of(GivenQuestion(question="1 + 1", answer="2"))
    assert answered.task is not None
    task = answered.task.model_copy(update={"id": "bare", "reference": None})
    bare = answered.model_copy(update={"task": task})
    write_records(given, [answered, bare])
    said = rf"{name}: .* 1 of 2 tasks have none \(the first is bare\)"
    refused(ConfigError, said, model, tmp_path, change, f"solver.tasks={given}")
    write_records(given, [answered])
    run = small_run(model, tmp_path, change, f"solver.tasks={given}")
    # The answers are taken out after the run was begun, which has its own, and is moved without the file.
    write_records(given, [bare])
    said = []
    run.progress = LineProgress(said.append)
    say_changes(run)
    assert said == [
        f"solver.tasks: {given} has changed since the run began; the run keeps its own, {ANOTHER}"
    ]
    given.unlink()
    moved = RunFolder(run.folder.path.rename(tmp_path / "moved"))
    again = open_run(load_config(moved.config), tmp_path, Progress(), folder=moved)
    assert list(tasks_to_train_on(again, 1).by_id) == [answered.task.id]
    write_records(moved.given("solver.tasks"), [bare])
    with pytest.raises(ConfigError, match="1 of 1 tasks have none"):
        tasks_to_train_on(again, 1)


@pytest.mark.parametrize(("setting", "key"), [("solver.reward", "design"), ("solver.routing", "by")])
def test_whole_texts_are_not_compared_where_the_solver_boxes_its_answer(
    model: Path, tmp_path: Path, setting: str, key: str
) -> None:
    """Before, every right answer got 0 without a word."""
    given = tmp_path / "given.jsonl"
    given.write_text('{"question": "1 + 1", "answer": "2"}\n')
    own = [f"solver.tasks={given}", "domain=math"]
    exact, auto = (f"{setting}={{{key}: verifier, check: {check}}}" for check in ("exact", "auto"))
    said = rf"{setting}.check: exact .* the math pack .* use boxed"
    refused(ConfigError, said, model, tmp_path, *own, exact)
    assert small_run(model, tmp_path, *own, auto).folder.config.exists()


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
MAP = '{"weight_map": {"lm_head": "%s"}}'


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"config.json": None}, r"no config\.json"),
        ({WEIGHTS: None, PICKLED: "", "rotary.safetensors": "beside"}, "pickled code; save the model"),
        ({WEIGHTS: None, "adapter_model.safetensors": ""}, "found adapter_model.safetensors, expected"),
        (
            {WEIGHTS: None, PICKLED: "", INDEX: MAP % PICKLED},
            "names 'pytorch_model.bin' as weights, expected",
        ),
        ({WEIGHTS: None, INDEX: MAP % "../other/model.safetensors"}, "names '../other/model.safetensors' as"),
        ({WEIGHTS: None, INDEX: "{"}, r"index\.json is not a JSON object"),
        ({WEIGHTS: None}, "found no weights; save the model as safetensors"),
        ({"config.json": '{"auto_map": {"AutoModel": "evil.Model"}}'}, "auto_map, which runs foreign code"),
        (
            {"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["evil.T", null]}}'},
            "config.json has auto_map",
        ),
        ({"config.json": "\xff\xfe\0"}, r"config\.json is not a JSON object"),
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


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", b"{}", "no model_type, expected the model's family"),
        ("model.safetensors", slice(0, -1), r"a damaged one \([\d,]+ bytes\); "),
        ("model.safetensors", b"\2\0\0\0\0\0\0\0{}", "damaged one"),
    ],
)
def test_a_broken_model_is_found_before_its_runs_name_is_taken(
    model: Path, tmp_path: Path, name: str, content: slice | bytes, complaint: str
) -> None:
    file, whole = model / name, (model / name).read_bytes()
    file.write_bytes(whole[content] if isinstance(content, slice) else content)
    refused(CheckpointError, complaint, model, tmp_path)
    file.write_bytes(whole)
    assert small_run(model, tmp_path).folder.config.exists()


def test_weights_in_parts_are_all_there_or_refused(model: Path, tmp_path: Path) -> None:
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors").rename(model / parts["a"])
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    said = r"names 'model-00002-of-00002\.safetensors' as weights, expected"
    refused(CheckpointError, said, model, tmp_path)
    (model / parts["b"]).write_bytes((model / parts["a"]).read_bytes())
    assert small_run(model, tmp_path).folder.config.exists()


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
    refused(CheckpointError, complaint, model, tmp_path)
