"""Plans: the volume of the paper's iteration comes out, hours and calls follow from named assumptions; GPUs, hosts and
disks: what a trainer needs, and what is advised where that is more than there is.

`scope preflight` and the same look before `scope run` begins: one table, nothing written, exit codes.
"""

import asyncio
import json
import re
import shlex
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, OutsideError, State
from scope_selfplay.base.values import Document
from scope_selfplay.cli import cli
from scope_selfplay.config.base import SearchConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.plan.commands import PAPER as PAPERS
from scope_selfplay.plan.load import (
    ResourcePlan,
    RetrievalPlan,
    checkpoint_gib,
    group_load,
    make_plan,
    retrieval_plan,
    step_load,
    training_disk,
)
from scope_selfplay.plan.memory import GIB, Parts, PodMemory, Trainer, gpu_peaks, pinned_bytes, pod_memory
from scope_selfplay.plan.preflight import (
    Pool,
    budgets,
    check_documents,
    check_servers,
    document_needs,
    examine_for_cluster,
)
from scope_selfplay.plan.size import Assumptions, ModelShape, ModelSize, model_size
from scope_selfplay.search.searcher import ask_retriever
from scope_selfplay.store.folder import Stage
from tests.engines import served

PAPER = load_config(None, PAPERS)
QWEN = Path(__file__).parents[3] / "k8s" / "runs" / "qwen3-8b" / "run.yaml"


def test_the_volume_of_one_iteration_is_that_of_the_paper() -> None:
    """SCOPE appendix G with four criteria; that 40 % are accepted, which no paper states, and `compare` are ours."""
    plan = make_plan(PAPER, gates=2, assumptions=Assumptions())
    learning = {stage.stage: stage for stage in plan.stages if stage.stage is not Stage.COMPARE}
    assert learning[Stage.CHALLENGER].challenger_rollouts == 10_240
    assert [stage.solver_rollouts for stage in learning.values()] == [81_920, 51_200, 40_960]
    assert sum(stage.solver_rollouts for stage in learning.values()) == 174_080
    assert sum(stage.judge_calls for stage in learning.values()) == 765_440
    assert learning[Stage.TASKS].prompts == 12_800
    grades = 4 * sum(stage.solver_rollouts for stage in learning.values())
    assert grades / 765_440 > 0.9


def test_sizes_come_from_the_model_its_name_or_the_user(tmp_path: Path) -> None:
    size = model_size("/models/Qwen3-8B-Base")
    assert (size.parameters, size.cache_bytes) == (pytest.approx(8.19e9, rel=0.002), 147_456)
    assert model_size("/models/Mine-7B-Instruct").parameters == 7e9
    other = tmp_path / "Other-7B"
    other.mkdir()
    (other / "config.json").write_text('{"n_embd": 4096}')
    assert (model_size(str(other)).parameters, model_size(str(other)).found) == (7e9, "the name Other-7B")
    assert model_size("/models/mine", 3e9).parameters == 3e9
    with pytest.raises(ConfigError, match=r"/models/mine is not here and its name has no size such as 8B"):
        model_size("/models/mine")


GIVEN = Assumptions(
    criteria=4, answer_tokens=500, judge_prompt_tokens=100, rollout_tokens=1000, read_tokens=2000
)
CALLS_OF_8 = {
    "rubric": 32,
    "verifier": 0,
    "implicit": 9,
    "explicit": 33,
    "pointwise": 8,
    "pairwise": 29,
    "win_rate": 28,
    "tournament_grpo_2_1_1": 29,
    "tournament_grpo_4_2_2": 25,
    "arenarl": 28,
    "live": 18,
    "balanced": 18,
}


def plan_with(*settings: str) -> ResourcePlan:
    config = load_config(None, ["model.path=Qwen3-8B", *settings])
    return make_plan(config, gates=2, assumptions=GIVEN)


def solver_calls(*settings: str) -> int:
    return next(stage for stage in plan_with(*settings).stages if stage.stage is Stage.SOLVER).judge_calls


@pytest.mark.parametrize("preset", CALLS_OF_8)
def test_a_step_is_charged_the_calls_that_the_design_plans(preset: str) -> None:
    """20 steps of 256 groups of 8; rubrics that a paper writes from the query are one call a group."""
    assert solver_calls(f"solver.reward={preset}") == 20 * 256 * CALLS_OF_8[preset]


@pytest.mark.parametrize(
    ("preset", "read"),
    [
        ("rubric", 500),
        ("live", 2 * 3000),
        # Without what the tools returned.
        ("arenarl", 2 * 1000),
        ("tournament_grpo_4_2_2", 4 * 500),
    ],
)
def test_a_comparison_reads_as_many_rollouts_as_it_compares(preset: str, read: int) -> None:
    solver = load_config(None, [f"solver.reward={preset}", "solver.reward.max_missing=0.25"]).solver
    load = group_load(solver, GIVEN)
    written = 1 if getattr(solver.reward, "rubrics", None) == "query" else 0
    assert (load.read - 100 * written) / (load.calls - written) == pytest.approx(100 + read)


def test_routed_designs_are_charged_for_flat_groups_alone() -> None:
    groups = 20 * 256
    by_rubric = ("solver.reward=live", "solver.routing=rubric")
    assert solver_calls(*by_rubric) == groups * 32 + 0.3 * groups * 18
    assert solver_calls("solver.reward=live", "solver.routing={by: verifier}") == 0.3 * groups * 18
    budget = solver_calls("solver.reward=live", "solver.routing={by: rubric, budget: 100}")
    assert budget == groups * 32 + 20 * 100
    config = load_config(None, ["solver.reward=live", "solver.routing={by: verifier, budget: 100}"])
    assert step_load(config, Assumptions(flat_share=0.1)).calls == pytest.approx(100)


@pytest.mark.parametrize(("orders", "times"), [("false", 1), ("true", 2)])
def test_stage_d_compares_with_every_earlier_solver(orders: str, times: int) -> None:
    """Three iterations: S_1 meets one, S_2 two, S_3 three; 200 tasks, 4 criteria."""
    plan = plan_with("iterations=3", f"compare.both_orders={orders}")
    stage = plan.stages[-1]
    assert stage.stage is Stage.COMPARE
    assert 3 * stage.judge_calls == 200 * (3 * 4 + times * (1 + 2 + 3))


def test_without_a_judge_nobody_is_asked_and_readers_answer() -> None:
    settings = ("judge.kind=verifier", "judge.gates=[]", "tasks.rollouts=4")
    for gates, readers in (("[misread]", 4 + 2), ("[given_away]", 0)):
        plan = plan_with(*settings, f"tasks.answer_gates={gates}")
        assert plan.total("judge_calls") == 0
        (tasks,) = (stage for stage in plan.stages if stage.stage is Stage.TASKS)
        assert tasks.solver_rollouts == tasks.prompts * (4 + readers)


def test_readers_of_some_short_answers_are_counted_beside_a_judge() -> None:
    config = load_config(None, ["model.path=Qwen3-8B", "tasks.rollouts=4"])
    plan = make_plan(config, gates=2, assumptions=GIVEN, short=0.5)
    (tasks,) = (stage for stage in plan.stages if stage.stage is Stage.TASKS)
    assert tasks.solver_rollouts == tasks.prompts * (4 + 3)


def retrieval(*settings: str) -> RetrievalPlan:
    found = retrieval_plan(load_config(QWEN, list(settings)), Assumptions())
    assert found is not None
    return found


def test_the_servers_memory_is_planned_from_its_processes_and_the_profile_and_too_little_is_said() -> None:
    usual = retrieval().memory_gib
    assert 20 < usual < 30
    # Another search process has an encoder of its own; a flat index is in memory as a whole.
    assert 0.9 < retrieval("cluster.retriever.cpu='17'").memory_gib - usual < 1.2
    assert retrieval("cluster.prepare.index=[--profile, flat]").memory_gib - usual > 50
    assert retrieval("cluster.retriever.args=[--workers=3]").memory_gib < usual - 10
    for run in QWEN.parents[1].glob("*/run.yaml"):
        found = retrieval_plan(load_config(run), Assumptions())
        # Enough, and not so much that nodes are kept from others for nothing.
        assert found is None or found.memory_gib < found.requested_gib < 2 * found.memory_gib, run
    assert retrieval("cluster.retriever.memory=16Gi").is_short


def plan(*words: str) -> str:
    return CliRunner().invoke(cli, ["plan", *words], catch_exceptions=False).output


def test_the_command_prints_the_plan_as_text_and_as_data() -> None:
    text = plan("--paper")
    assert "10,240" in text and "assumed: acceptance=0.4" in text
    assert max(len(line) for line in text.splitlines()[:16]) < 160
    data = json.loads(plan("--paper", "--json", "--assume", "acceptance=0.8"))
    assert data["stages"][1]["prompts"] == 6400
    assert data["assumptions"]["acceptance"] == 0.8
    assert data["pods"][0]["host_parts"]["optimizer"] > 60 and data["stages"][0]["disk_gib"] > 250
    indexed = plan("--config", str(QWEN))
    assert re.search(
        r"retriever: 21,015,324 passages take 2\d of the 32 GiB that it has$", indexed, re.MULTILINE
    )


def test_ones_own_documents_are_counted(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"Page {number} says enough to ask about. " * 9)
    here = ("--set", f"corpus.path={tmp_path}", "--set", "challenger.max_prompt=4096")
    options = ["--set", "domain=wikipedia", *here, "--set", "compare.given=null"]
    assert "documents: 9; iteration 1 train the Challenger needs 30 and would find" in plan(*options)
    assert json.loads(plan("--json", *options))["documents"]["advice"].startswith("add ")
    away = plan("--set", "domain=wikipedia", "--set", "corpus.path=/data/none-such")
    where = "/data/none-such is not on this machine and not counted"
    assert f"documents: 295 are needed if every one gives a task; {where}" in away


ROOT = Path(__file__).parents[3]
COLOCATED = ["model.path=Qwen3-8B", "model.engine=vllm_colocated"]
COLOCATED += [f"{role}.micro_tokens=20480" for role in ("challenger", "solver")]
QWEN3_8B = model_size("Qwen3-8B")
PARAMETERS = 8_190_726_144


def pods(*settings: str) -> dict[str, PodMemory]:
    config = load_config(None, [*COLOCATED, *settings])
    return {pod.pod: pod for pod in pod_memory(config, QWEN3_8B, Assumptions())}


def updating(*settings: str) -> Parts:
    """What each of four GPUs of the Solver's trainer holds during its update."""
    config = load_config(None, [*COLOCATED, *settings])
    trainer = Trainer(config.model, config.solver, 4, QWEN3_8B, Assumptions())
    return gpu_peaks(trainer, offloaded=False)["updating"]


def solver_trainer(*settings: str) -> PodMemory:
    return pods(*settings)["solver trainer"]


def test_four_gpus_hold_float32_masters_moments_and_gradients_and_a_bf16_reference() -> None:
    parts = updating()
    for name, width in {"weights": 4, "optimizer": 8, "gradients": 4, "reference": 2}.items():
        assert parts[name] == pytest.approx(width * PARAMETERS / 4 / GIB, rel=0.001)
    # Tail and two layers in bf16; a gradient of the tail in bf16, and of a layer in float32 to be reduced.
    tail, layer = 622e6, 193e6
    assert parts["gathered"] == pytest.approx(
        (2 * (tail + tail + layer) + 2 * tail + 4 * layer) / GIB, rel=0.01
    )
    assert parts["activations"] == pytest.approx(10.5, abs=0.2)


@pytest.mark.parametrize(
    ("layers", "hidden", "queries", "between", "rank", "fsdp", "measured"),
    [
        (28, 2048, 2048, 6144, 0, "", 39.26),
        (28, 1024, 2048, 3072, 0, "sharded", 12.892),
        (28, 1024, 2048, 3072, 0, "offloaded", 2.963),
        (36, 4096, 4096, 12288, 16, "", 45.725),
    ],
)
def test_updates_take_what_was_measured_on_an_h200(
    layers: int, hidden: int, queries: int, between: int, rank: int, fsdp: str, measured: float
) -> None:
    shape = ModelShape(layers, hidden, queries, 1024, between, 151_936, tied=not rank)
    settings = SolverConfig(max_prompt=512, max_response=3584)
    size = ModelSize(shape.parameters, shape.cache_bytes, "", shape)
    trainer = Trainer(ModelConfig(lora_rank=rank), settings, 1, size, Assumptions(), under_fsdp=bool(fsdp))
    parts = gpu_peaks(trainer, offloaded=fsdp == "offloaded")["updating"]
    planned = sum(gib for name, gib in parts.items() if name not in ("context", "engine"))
    assert planned == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(("sharding", "sharers"), [("full", 8), ("hybrid", 4)])
def test_a_gpu_of_two_nodes_holds_a_share_among_all_or_among_those_of_its_node(
    sharding: str, sharers: int
) -> None:
    two = ["cluster.train_solver.nodes=2", f"cluster.train_solver.sharding={sharding}"]
    found = pods(*two)["solver trainer"]
    assert (found.nodes, found.gpus, found.fits) == (2, 4, True)
    challenger = pods(*(setting.replace("solver", "challenger") for setting in two))["challenger trainer"]
    # Four GPUs that share one copy do without the host's memory.
    assert ("optimizer" in challenger.host_parts) is (sharding == "hybrid")
    for name, width in {"weights": 4, "optimizer": 8, "reference": 2}.items():
        assert found.parts[name] == pytest.approx(width * PARAMETERS / sharers / GIB, rel=0.001)


def test_a_large_pass_does_not_fit_and_the_advice_says_what_would() -> None:
    trainer = solver_trainer("solver.micro_tokens=163840")
    assert not trainer.fits and trainer.peak == "updating"
    assert "micro_tokens 81920" in trainer.advice and "model.lora_rank" in trainer.advice
    assert "still does not fit" in trainer.advice
    assert "which fits" in solver_trainer("solver.micro_tokens=73728").advice
    assert solver_trainer().fits and not solver_trainer().advice


def test_the_host_of_an_offloading_trainer_holds_its_states_pinned_and_the_export() -> None:
    """torch rounds pinned tensors up to powers of two: 96 MiB of a feed-forward matrix become 128."""
    trainer = pods()["challenger trainer"]
    assert trainer.gpus == 2 and trainer.fits and trainer.parts["weights"] == trainer.parts["optimizer"] == 0
    host = trainer.host_parts
    assert host["optimizer"] == pytest.approx(8 * PARAMETERS / GIB, rel=0.001)
    assert 1.3 < host["weights"] / (4 * PARAMETERS / GIB) < 1.4
    assert host["weights"] == host["gradients"] == pytest.approx(2 * pinned_bytes(QWEN3_8B, 2, 4) / GIB)
    assert host["loading or export"] == pytest.approx((2 * PARAMETERS + 5e9) / GIB, rel=0.001)
    whole = pods("model.export_dtype=float32")["challenger trainer"].host_parts
    assert whole["loading or export"] == pytest.approx((4 * PARAMETERS + 5e9) / GIB, rel=0.001)
    assert trainer.host_fits and trainer.host_gib < 0.9 * trainer.requested


def test_a_pod_that_asks_for_less_memory_than_it_needs_is_told_how_much() -> None:
    trainer = pods(
        "cluster.train_challenger.pod={spec: {containers: [{name: main, resources: {limits: {memory: 128Gi}}}]}}"
    )["challenger trainer"]
    assert not trainer.host_fits
    assert trainer.advice == f"a pod of at least {trainer.host_gib:.0f} GiB (it has 128)"


@pytest.mark.parametrize(
    "file", sorted([*ROOT.glob("k8s/runs/*/run.yaml"), *ROOT.glob("k8s/presets/*.yaml")]), ids=str
)
def test_every_pod_of_the_runs_in_the_repository_has_the_host_memory_that_it_needs(file: Path) -> None:
    config = load_config(file)
    found = pod_memory(config, model_size(config.model.path), Assumptions())
    assert [pod.pod for pod in found if not pod.host_fits] == []
    assert bool(found) != config.cluster.tiny
    assert make_plan(config, gates=2, assumptions=Assumptions(), parameters=8e9).gpu_hours > 0


def test_a_judge_that_is_another_model_has_its_own_size_and_gpus() -> None:
    own = pods()["judge"]
    assert (own.gpus, own.parts["weights"]) == (2, pytest.approx(2 * PARAMETERS / GIB))
    large = pods("cluster.judge.model=/data/models/Qwen3-235B-A22B", "cluster.judge.gpus=8")["judge"]
    assert (large.gpus, large.parts["weights"]) == (8, pytest.approx(2 * 235e9 / 8 / GIB))
    assert not pods("cluster.judge.model=/data/models/Qwen3-235B-A22B")["judge"].fits
    assert model_size("Qwen3-235B-A22B").active == 22e9 and QWEN3_8B.active == PARAMETERS


def test_an_adapter_needs_gradients_and_moments_of_its_own_size_and_no_reference() -> None:
    whole, adapted = (updating(f"model.lora_rank={rank}") for rank in (0, 16))
    # 43.6 million parameters: 36 layers, 16 x (in + out) of seven linear layers; four GPUs share them.
    assert adapted["gradients"] == pytest.approx(4 * 43.65e6 / GIB / 4, rel=0.001)
    assert adapted["optimizer"] == pytest.approx(2 * adapted["gradients"])
    assert adapted["reference"] == 0.0 < whole["reference"]
    assert whole["weights"] == pytest.approx(adapted["weights"], rel=0.01)


def test_the_engine_takes_what_its_kind_takes_and_a_colocated_one_sleeps_during_the_update() -> None:
    """A share of 0.9 leaves no room for shards: the plan says how much does."""
    colocated = solver_trainer("model.vllm_memory=0.6")
    assert colocated.fits and colocated.parts["engine"] == pytest.approx(0.6 * Assumptions().gpu_gib)
    greedy = solver_trainer("model.vllm_memory=0.9")
    assert not greedy.fits and greedy.peak == "sampling" and "gradients" not in greedy.parts
    assert "model.vllm_memory 0.6" in greedy.advice
    server = ("model.engine=vllm_server", "model.vllm_url=http://127.0.0.1:8000")
    assert solver_trainer(*server).parts["engine"] == 0.0
    few, many = (solver_trainer("model.engine=in_process", f"model.slots={slots}") for slots in (8, 96))
    assert few.peak == "updating" and 4 * 8e9 / GIB < few.parts["engine"] < many.parts["engine"]
    assert not many.fits and "fewer model.slots" in many.advice


def test_disk_has_two_checkpoints_the_one_being_written_and_the_export() -> None:
    config = RunConfig()
    model, solver = config.model, config.solver
    one = checkpoint_gib(model, QWEN3_8B)
    assert one * GIB == pytest.approx(98.3e9, rel=0.001)
    often = training_disk(model, solver, QWEN3_8B, text=0.0)
    assert often.working == pytest.approx(3 * one)
    assert often.kept == pytest.approx(2 * PARAMETERS / GIB, rel=0.001)
    # The weights are exported beside the checkpoints.
    for change, checkpoints in (({"save_every": 20}, 1), ({"steps": 2}, 2)):
        fewer = training_disk(model, solver.model_copy(update=change), QWEN3_8B, text=1.0)
        assert fewer.working == pytest.approx(checkpoints * one + often.kept + 1.0)
    float32 = model.model_copy(update={"export_dtype": "float32"})
    assert training_disk(float32, solver, QWEN3_8B, text=0.0).kept == pytest.approx(2 * often.kept)


def checks_of(tmp_path: Path, *settings: str) -> tuple[int, dict[str, dict[str, object]]]:
    words = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(cli, ["preflight", "--root", str(tmp_path / "runs"), "--json", *words])
    code = getattr(done.exception, "exit_code", 0) if done.exception else 0
    assert not (tmp_path / "runs").exists()
    return int(code), {row["where"]: row for row in json.loads(done.stdout)}


def test_the_laptops_run_passes_and_says_what_it_will_take(tmp_path: Path) -> None:
    code, found = checks_of(tmp_path)
    assert code == 0 and {row["state"] for row in found.values()} == {"ok"}
    # How many is the shipped config's business.
    documents = r"[\d,]+ and [\d,]+ for held-out tasks; [\d,]+ needed if every one gives a task"
    assert re.match(documents, str(found["documents"]["what"]))
    assert "rollouts" in str(found["calls and time"]["what"]) and "free in" in str(found["disk"]["what"])


def test_a_folder_of_documents_is_told_of_with_the_command_that_shows_more(tmp_path: Path) -> None:
    (folder := tmp_path / "my soups").mkdir()
    for name in ("a.md", "b.bin"):
        (folder / name).write_text("# Soup\n\nIt boils for an hour.\n")
    files = checks_of(tmp_path, f"corpus.path={folder}")[1]["files"]
    found, command, _ = str(files["what"]).split("`")
    shown = CliRunner().invoke(cli, shlex.split(command)[1:]).output
    assert files["state"] == "warning" and ".bin" in found and "b.bin" in shown


def test_an_index_of_other_passages_stops_a_run(tmp_path: Path) -> None:
    row = {"document": {"id": "x", "contents": '"Else"\nSomething else.'}, "score": 1.0}
    about = {"identity": "bm25-other", "kind": "bm25", "rows": 26, "corpus_hash": "other"}
    with served(lambda method, path, body: (200, about if method == "GET" else {"result": [[row]]})) as url:
        code, found = checks_of(tmp_path, f"search.url={url}")
    assert code == 64 and found["retriever"]["state"] == "stop"
    assert "26 passages; 0 of 8 of the run's " in str(found["retriever"]["what"])
    assert "scope index build CONFIG INDEX" in str(found["retriever"]["advice"])


def test_all_servers_are_asked_at_the_same_time_and_each_thing_is_said_once(tmp_path: Path) -> None:
    together, asked = Barrier(4), []

    def refuse(method: str, path: str, body: object) -> tuple[int, object]:
        asked.append(path)
        # None is answered before all have been asked.
        together.wait(timeout=60)
        return 400, {}

    with served(refuse) as one, served(refuse) as two, served(refuse) as three, served(refuse) as four:
        urls = [
            f"search.url={one}",
            f"partners.solver.base_url={three}/v1",
            f"judge.endpoint.base_url=[{two}/v1, {four}/v1]",
        ]
        words = [word for each in (*urls, "judge.kind=model") for word in ("--set", each)]
        done = CliRunner().invoke(cli, ["preflight", "--root", str(tmp_path), *words])
    lines = done.stdout.splitlines()
    assert all(sum(url in line for line in lines) == 1 for url in (one, two, three))
    assert "no answer" not in done.stdout and sorted(asked) == ["/info", *["/v1/models"] * 3]
    assert str(done.exception) == "3 of 8 checks stop the run"


def test_a_retriever_that_is_there_may_be_slow_to_search() -> None:
    def answer(method: str, path: str, body: object) -> tuple[int, object]:
        time.sleep(1.0 if method == "POST" else 0.0)
        return 200, {"identity": "bm25-a", "result": [[]]}

    with served(answer) as url:
        found = asyncio.run(
            ask_retriever(SearchConfig(url=url), [Document(id="a", title="", text="A dam.")], 1, 0.5)
        )
    assert (found.asked, found.found) == (1, 0)


def test_servers_that_take_a_call_and_say_nothing_keep_nobody_waiting() -> None:
    with ExitStack() as opened:
        silent = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
        one, two, three, four, five = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in silent)
        judge = f"{{base_url: [{one}/v1, {two}/v1]}}"
        urls = (f"judge.endpoint={judge}", f"judge.endpoints.gates.base_url={three}/v1", f"search.url={four}")
        config = load_config(None, ["judge.kind=model", f"partners.solver.base_url={five}/v1", *urls])
        began = time.monotonic()
        found = check_servers(config, [Document(id="a", title="", text="A dam.")])
        assert time.monotonic() - began < 5.0
        assert [each.where for each in found] == ["retriever", "judge", "partner solver"]
        assert all(each.is_outside and "no answer within 4 s" in each.what for each in found)
        for each in silent:
            each.setblocking(False)
            each.accept()[0].close()
            with pytest.raises(BlockingIOError):
                each.accept()


def test_a_partner_that_serves_other_weights_stops_a_new_run(tmp_path: Path) -> None:
    about = {"data": [{"id": "somebody", "root": "/models/other", "max_model_len": 4096}]}
    with served(lambda method, path, body: (200, about)) as url:
        code, found = checks_of(tmp_path, f"partners.solver={{base_url: {url}/v1, model: somebody}}")
    assert code == 64 and "serves somebody from /models/other" in str(found["partner solver"]["what"])


def test_a_server_that_is_down_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    settings = ("search.url=http://127.0.0.1:9", "search.outage=0.2")
    code, found = checks_of(tmp_path, *settings)
    assert code == 75 and found["retriever"]["is_outside"] is True
    run = CliRunner().invoke(
        cli, ["run", "--root", str(tmp_path / "runs"), *(w for each in settings for w in ("--set", each))]
    )
    assert isinstance(run.exception, OutsideError) and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("model.max_length=2000", "challenger budget"),
        ("search.max_tokens=9000", "search budget"),
        ("corpus.chunk_tokens=64", "chunks"),
    ],
)
def test_budgets_that_cut_something_off_are_named(setting: str, what: str) -> None:
    checks = budgets(load_config(None, [setting]))
    assert what in {check.where for check in checks if check.state is State.WARNING}
    assert {check.state for check in budgets(load_config(None))} == {State.OK}


def test_a_clusters_run_is_checked_as_far_as_it_is_known_from_elsewhere() -> None:
    few = load_config(None, ["corpus.path=embedded", "corpus.sample=100"])
    assert [check.where for check in examine_for_cluster(few) if check.state is State.STOP] == ["documents"]
    far = load_config(None, ["corpus.path=/data/corpus.jsonl", "model.path=Qwen3-8B"])
    found = {check.where: check for check in examine_for_cluster(far)}
    assert "on the run's volume and not counted" in found["documents"].what
    assert "GPU hours" in found["calls and time"].what


def config_of(*settings: str) -> RunConfig:
    return load_config(None, ["compare.tasks=10", "iterations=1", *settings])


def test_the_papers_run_needs_1280_documents_to_train_and_5120_to_make_tasks() -> None:
    needs = document_needs(load_config(None, ["iterations=1"]))
    assert [(need.iteration, need.stage, need.count, need.least) for need in needs] == [
        (0, Stage.TASKS, 200, 1),
        (1, Stage.CHALLENGER, 1280, 1280),
        (1, Stage.TASKS, 5120, 256),
    ]
    check = check_documents(config_of(), Pool(39))
    assert check.state is State.STOP, "before anything is spent"
    assert "iteration 1 train the Challenger needs 1,280 and would find 29" in check.what
    assert check.advice.startswith("add 6,371 documents or more, or lower compare.tasks, challenger.steps")


@pytest.mark.parametrize(
    ("documents", "held_out", "state"),
    [
        # 10 held-out tasks, 4 x 5 to train, a target of 30 of which a batch of 6 is the least.
        (60, None, State.WARNING),
        (35, None, State.STOP),
        # 10 / 0.7 + 20 + 30 / 0.4 documents, rounded up: as tasks are expected to be kept.
        (109, None, State.WARNING),
        (95, 14, State.WARNING),
        (25, 15, State.STOP),
    ],
)
def test_a_run_is_held_against_its_pools(documents: int, held_out: int | None, state: State) -> None:
    config = config_of(
        "challenger.steps=4", "challenger.batch=5", "tasks.target=30", "solver.batch=6", "solver.steps=5"
    )
    assert check_documents(config, Pool(documents, held_out)).state is state


def test_later_iterations_find_what_earlier_ones_left_and_given_tasks_need_none() -> None:
    settings = ("challenger.steps=1", "challenger.batch=10", "tasks.target=10", "solver.batch=5")
    assert check_documents(config_of(*settings, "iterations=2"), Pool(40)).state is State.STOP
    assert "iteration 2 make tasks" in check_documents(config_of(*settings, "iterations=2"), Pool(44)).what
    kept = check_documents(config_of(*settings, "iterations=2"), Pool(46, kin=3))
    assert kept.state is State.STOP and "46, 3 of them of held-out pages" in kept.what
    assert kept.advice.startswith("add 7 documents or more, or lower")
    assert check_documents(config_of(*settings, "challenger.freeze_after=0"), Pool(40)).state is State.OK
    given = config_of("solver.tasks=a.jsonl", "compare.given=b.jsonl")
    assert document_needs(given) == [] and check_documents(given, Pool(3)).state is State.OK
