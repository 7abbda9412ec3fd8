"""GPUs, hosts and disks of a plan: what a trainer needs, and what is advised where that is more than there is."""

from pathlib import Path

import pytest

from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.plan.commands import as_text
from scope_selfplay.plan.load import checkpoint_gib, make_plan, training_disk
from scope_selfplay.plan.memory import (
    GIB,
    Parts,
    PodMemory,
    Trainer,
    gpu_peaks,
    most_gpus,
    pinned_bytes,
    pod_memory,
)
from scope_selfplay.plan.size import Assumptions, model_size

ROOT = Path(__file__).parents[3]
PAPERS = [
    "model.path=Qwen3-8B",
    "model.engine=vllm_colocated",
    "challenger.micro_tokens=20480",
    "solver.micro_tokens=20480",
]
QWEN3_8B = model_size("Qwen3-8B")
PARAMETERS = 8_190_726_144


def pods(*settings: str, path: str = "Qwen3-8B") -> dict[str, PodMemory]:
    config = load_config(None, [*PAPERS, f"model.path={path}", *settings])
    return {pod.pod: pod for pod in pod_memory(config, model_size(path), Assumptions())}


def updating(*settings: str, path: str = "Qwen3-8B", gpus: int = 4) -> Parts:
    """What each GPU of the Solver's trainer holds during its update."""
    config = load_config(None, [*PAPERS, f"model.path={path}", *settings])
    trainer = Trainer(config.model, config.solver, gpus, model_size(path), Assumptions())
    return gpu_peaks(trainer, offloaded=False)["updating"]


def test_one_process_under_fsdp_holds_whole_shards_and_what_fsdp_gathers() -> None:
    config = load_config(None, [*PAPERS, "model.path=Qwen3-8B"])
    alone = Trainer(config.model, config.solver, 1, QWEN3_8B, Assumptions())
    wrapped = gpu_peaks(alone._replace(under_fsdp=True), offloaded=False)["updating"]
    plain, shared = gpu_peaks(alone, offloaded=False)["updating"], updating()
    assert wrapped["weights"] == plain["weights"] == pytest.approx(4 * shared["weights"])
    assert wrapped["reference"] == plain["reference"] / 2
    assert wrapped["gathered"] == shared["gathered"] < plain["gathered"]


def solver_trainer(*settings: str, path: str = "Qwen3-8B") -> PodMemory:
    return pods(*settings, path=path)["solver trainer"]


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


@pytest.mark.parametrize(("sharding", "sharers"), [("full", 8), ("hybrid", 4)])
def test_a_gpu_of_two_nodes_holds_a_share_among_all_or_among_those_of_its_node(
    sharding: str, sharers: int
) -> None:
    """Two nodes of two GPUs do without the host's memory where all four share one copy."""
    two = ["cluster.train_solver.nodes=2", f"cluster.train_solver.sharding={sharding}"]
    found = pods(*two)["solver trainer"]
    assert (found.nodes, found.gpus, found.fits) == (2, 4, True)
    for name, width in {"weights": 4, "optimizer": 8, "reference": 2}.items():
        assert found.parts[name] == pytest.approx(width * PARAMETERS / sharers / GIB, rel=0.001)
    assert found.host_parts == pods()["solver trainer"].host_parts
    two = [setting.replace("solver", "challenger") for setting in two]
    challenger, alone = (pods(*settings)["challenger trainer"] for settings in (two, ()))
    if sharding == "hybrid":
        assert challenger.host_parts == alone.host_parts and challenger.parts == alone.parts
    else:
        assert "optimizer" not in challenger.host_parts and challenger.parts["optimizer"] > 0


def test_nodes_with_one_gpu_share_one_copy() -> None:
    two = ["cluster.train_solver={nodes: 2, sharding: hybrid, gpus: 1}", "solver.kl_beta=0"]
    assert pods(*two)["solver trainer"].host_parts["optimizer"] > 0


def test_a_plan_counts_the_gpus_of_all_nodes_and_shows_how_many_pods_there_are() -> None:
    config = load_config(None, [*PAPERS, "model.path=Qwen3-8B", "cluster.train_solver.nodes=2"])
    plan = make_plan(config, gates=2, assumptions=Assumptions())
    assert plan.gpus == 10
    assert [pod.nodes for pod in plan.pods if pod.pod == "solver trainer"] == [2]
    assert "2 x 4" in as_text(plan) and "solver trainer on 2 x 4 GPU(s)" in as_text(plan)


def test_parts_add_up_at_the_greater_of_two_peaks() -> None:
    for pod in (*pods().values(), *pods("model.vllm_memory=0.9", "solver.micro_tokens=10240").values()):
        assert sum(pod.parts.values()) == pytest.approx(pod.gib)
        assert sum(pod.host_parts.values()) == pytest.approx(pod.host_gib)


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
    "file", sorted(ROOT.glob("k8s/runs/*/run.yaml")), ids=lambda file: str(file.parent.name)
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
    shared = pods("cluster.judge.tensor_parallel=2")["judge"]
    assert shared.parts["weights"] == pytest.approx(own.parts["weights"] / 2)
    large = pods("cluster.judge.model=/data/models/Qwen3-235B-A22B", "cluster.judge.gpus=8")["judge"]
    assert (large.gpus, large.parts["weights"]) == (8, pytest.approx(2 * 235e9 / 8 / GIB))
    assert large.fits and large.host_fits
    assert not pods("cluster.judge.model=/data/models/Qwen3-235B-A22B")["judge"].fits
    assert model_size("Qwen3-235B-A22B").active == 22e9 and QWEN3_8B.active == PARAMETERS


def test_pods_without_gpus_are_left_out_and_replicas_are_counted() -> None:
    found = pods(
        "cluster.solver={gpus: 4, replicas: 3}", "cluster.judge.serve=false", "cluster.challenger.gpus=0"
    )
    assert found.keys() == {"challenger trainer", "solver trainer", "solver"}
    assert (found["solver"].gpus, found["solver"].nodes) == (4, 3)
    config = load_config(None, [*PAPERS, "cluster.solver={gpus: 4, replicas: 3}"])
    assert most_gpus(config.cluster) == 2 + 12 + 2


def test_an_adapter_needs_gradients_and_moments_of_its_own_size_and_no_reference() -> None:
    whole, adapted = (updating(f"model.lora_rank={rank}") for rank in (0, 16))
    # 43.6 million parameters: 36 layers, 16 x (in + out) of seven linear layers; four GPUs share them.
    assert adapted["gradients"] == pytest.approx(4 * 43.65e6 / GIB / 4, rel=0.001)
    assert adapted["optimizer"] == pytest.approx(2 * adapted["gradients"])
    assert adapted["reference"] == 0.0 < whole["reference"]
    assert whole["weights"] == pytest.approx(adapted["weights"], rel=0.01)


def test_the_engine_takes_what_its_kind_takes() -> None:
    assert solver_trainer("model.vllm_memory=0.6").parts["engine"] == pytest.approx(
        0.6 * Assumptions().gpu_gib
    )
    server = ("model.engine=vllm_server", "model.vllm_url=http://127.0.0.1:8000")
    assert solver_trainer(*server).parts["engine"] == 0.0
    few, many = (solver_trainer("model.engine=in_process", f"model.slots={slots}") for slots in (8, 96))
    assert 4 * 8e9 / GIB < few.parts["engine"] < many.parts["engine"]
    assert not many.fits and "fewer model.slots" in many.advice


def test_a_colocated_engine_sleeps_while_the_trainer_updates() -> None:
    """A share of 0.9 leaves no room for shards: the plan says how much does."""
    trainer = solver_trainer("model.vllm_memory=0.9")
    assert not trainer.fits and trainer.peak == "sampling" and "gradients" not in trainer.parts
    assert "model.vllm_memory 0.6" in trainer.advice
    assert solver_trainer("model.vllm_memory=0.6").fits
    awake = solver_trainer("model.engine=in_process", "model.slots=8")
    assert awake.peak == "updating" and awake.parts["engine"] > 0


def test_one_process_keeps_everything_and_a_bf16_copy_of_the_weights() -> None:
    parts = pods("cluster.train_solver.gpus=1")["solver trainer"].parts
    assert parts["weights"] == pytest.approx(4 * PARAMETERS / GIB, rel=0.001)
    assert parts["gathered"] == pytest.approx(2 * PARAMETERS / GIB, rel=0.001)
    assert parts["reference"] == parts["weights"]


def test_disk_has_two_checkpoints_the_one_being_written_and_the_export() -> None:
    config = RunConfig()
    one = checkpoint_gib(config.model, QWEN3_8B)
    assert one * GIB == pytest.approx(98.3e9, rel=0.001)
    often = training_disk(config.model, config.solver, QWEN3_8B, text=0.0)
    assert often.working == pytest.approx(3 * one)
    assert often.kept == pytest.approx(2 * PARAMETERS / GIB, rel=0.001)
    once = training_disk(
        config.model, config.solver.model_copy(update={"save_every": 20}), QWEN3_8B, text=1.0
    )
    assert once.working == pytest.approx(one + often.kept + 1.0)
    whole = training_disk(
        config.model.model_copy(update={"export_dtype": "float32"}), config.solver, QWEN3_8B, text=0.0
    )
    assert whole.kept == pytest.approx(2 * often.kept)
