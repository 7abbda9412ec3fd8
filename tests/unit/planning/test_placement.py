"""Where everything goes on one machine: every placement as a file, six of them worked out by hand, what is refused.

`placements.txt` is written anew by `SCOPE_WRITE_GOLDEN=1 pytest tests/unit/planning/test_placement.py`.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.load import load_config, parse_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.plan.placement import COUNTS, Slots, place
from scope_selfplay.plan.size import model_size
from scope_selfplay.store.folder import Stage

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden" / "placements.txt"
BY_HAND = GOLDEN.with_name("placements-by-hand.md").read_text()
CARDS = {24: (23.5, 64.0), 80: (79.0, 128.0)}
"""GB on the box, the GiB that programs have of it, and those of the host beside each."""
MODELS = ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-32B")
ONE_CARD = REPOSITORY / "k8s" / "runs" / "one-24gb" / "run.yaml"


def config_of(model: str, rank: int, **more: Any) -> RunConfig:
    """Policy and judge are the same model, at the paper's lengths."""
    settings = {"path": f"/models/{model}", "engine": "vllm_colocated", "deterministic": False}
    judge = {"kind": "model", "endpoint": {"base_url": "http://r1-judge:8000/v1"}}
    served = {"judge": {"model": f"/models/{model}"}}
    return parse_config(
        {"model": settings | ({"lora_rank": rank} if rank else {}), "judge": judge, "cluster": served} | more
    )


def text_of(config: RunConfig, slots: Slots) -> str:
    try:
        return "\n".join(place(config, slots).text())
    except ConfigError as error:
        return str(error)


def test_every_placement_is_the_one_of_the_file() -> None:
    found = [f"one-24gb on 1 x 24 GB\n{text_of(load_config(ONE_CARD), Slots((0,), *CARDS[24]))}"]
    for model in MODELS:
        for rank in (0, 16):
            for card, (gib, host) in CARDS.items():
                for count in COUNTS:
                    slots, how = Slots(tuple(range(count)), gib, count * host), ", adapter" if rank else ""
                    title = f"{model}{how} on {count} x {card} GB"
                    found.append(f"{title}\n{text_of(config_of(model, rank), slots)}")
    text = "\n\n".join(found) + "\n"
    if os.environ.get("SCOPE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


def test_six_placements_are_those_worked_out_by_hand() -> None:
    golden = dict(entry.split("\n", 1) for entry in GOLDEN.read_text().split("\n\n"))
    sections = re.findall(r"^## (.*)\n((?:(?!^##).*\n)*)", BY_HAND, re.MULTILINE)
    assert len(sections) == 6
    for title, text in sections:
        for name, gib, sum_of in re.findall(r"^- (\w+) ([\d.]+) = (.*)$", text, re.MULTILINE):
            # Numbers, G and the four operations.
            assert re.fullmatch(r"[\d.G+*/() ]+", sum_of)
            places = len(gib.partition(".")[2])
            assert round(eval(sum_of, {"G": 2**30}), places) == float(gib), (title, name)
            assert name == "least" or re.search(rf"{name} GPU [\d,]+ \({gib} GiB\)", golden[title]), (
                title,
                name,
            )
    for model, parameters in re.findall(r"^\| (\S+) \|.* (\d+) \| \d+ \|$", BY_HAND, re.MULTILINE):
        assert model_size(model).parameters == int(parameters)


def test_what_a_placement_decides_changes_nothing_that_a_run_computes() -> None:
    config = config_of("Qwen3-8B", 0)
    stored = config.cluster.model_copy(update={"store": "s3://bucket/runs"})
    placed = place(config.model_copy(update={"cluster": stored}), Slots(tuple(range(8)), 79.0)).config
    assert placed.hash == config.hash
    cluster = placed.cluster
    assert cluster.store == "", "one machine is one disk"
    assert (cluster.judge.gpus, cluster.train_challenger.gpus, cluster.train_solver.gpus) == (2, 4, 4)
    assert cluster.judge.args == ("--max-model-len", "16384")
    shared = place(load_config(ONE_CARD), Slots((3,), 23.5)).config
    assert shared.cluster.judge.args == ("--max-model-len", "4096", "--gpu-memory-utilization", "0.32")
    assert shared.model.vllm_memory == 0.24


def test_slots_of_the_cpu_take_two_ranks_where_a_batch_allows_it() -> None:
    made = place(config_of("Qwen3-8B", 0, solver={"batch": 8}, challenger={"batch": 6}), Slots((0, 1, 2, 3)))
    ranks = [made.slots_of(stage, "trainer") for stage in (Stage.CHALLENGER, Stage.SOLVER)]
    assert ranks == [(2, 3), (1, 2)] and made.slots_of(Stage.TASKS, "judge") == (0,)
    assert made.config.cluster.tiny and made.config.cluster.judge.gpus == 0


def test_the_librarys_own_servers_get_no_options_of_vllm() -> None:
    cluster = {"judge": {"model": "/models/Qwen3-0.6B"}, "tiny": True}
    placed = place(config_of("Qwen3-0.6B", 16, cluster=cluster), Slots((0,), *CARDS[80])).config.cluster
    assert placed.solver.args == placed.challenger.args == placed.judge.args == ()


def test_what_runs_elsewhere_has_no_gpus() -> None:
    config = config_of("Qwen3-4B", 16)
    judge = config.cluster.judge.model_copy(update={"serve": False})
    config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"judge": judge})})
    made = place(config, Slots((0,), 79.0))
    assert made.slots_of(Stage.TASKS, "judge") == () and made.slots_of(Stage.TASKS, "solver") == (0,)


def test_a_host_that_is_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match=r"needs \d+ GiB of the host"):
        place(config_of("Qwen3-8B", 0), Slots((0, 1), 79.0, 128.0))
