"""Several GPUs, several processes: a training job that is to have them starts itself once for each, and waits.

SCOPE_PROCESSES (or --processes) is the number on this node; several nodes tell themselves apart by SCOPE_NODES,
SCOPE_RENDEZVOUS and JOB_COMPLETION_INDEX. A process that has RANK is one of those that were started.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from jobs.stage_job import Order
from scope_selfplay.store import Stage


def processes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """On how many processes this node trains."""
    return click.option(
        "--processes",
        type=click.IntRange(min=1),
        default=1,
        envvar="SCOPE_PROCESSES",
        show_default=True,
        show_envvar=True,
        help="Processes on this node, one for each GPU.",
    )(command)


def launch_ranks(order: Order, stage: Stage, processes: int) -> None:
    """Returns where this process is to train itself; else ends it as the ranks that it started ended."""
    from scope_selfplay.training.launching import node_of

    if "RANK" in os.environ or (node := node_of(os.environ, processes)).world == 1:
        return
    from scope_selfplay.config import load_config
    from scope_selfplay.k8s.render import shipped_kustomize
    from scope_selfplay.training.launching import (
        RankTimeouts,
        module_command,
        rank_environments,
        run_ranks,
        sharding_environment,
    )
    from scope_selfplay.training.ranks import step_share

    config = load_config(order.config, order.overrides)
    settings, pod = (
        (config.challenger, config.cluster.train_challenger)
        if stage is Stage.CHALLENGER
        else (config.solver, config.cluster.train_solver)
    )
    step_share(settings, node.world)
    name = f"jobs.train_{stage.value}"
    sharding = sharding_environment(node, shipped_kustomize() / "base" / "accelerate")
    environments = [sharding | each for each in rank_environments(node)]
    ending = run_ranks(module_command(name, sys.argv[1:]), environments, RankTimeouts(pod.grace), _say)
    if ending.code:
        # The last line of a log is what the controller shows; other ranks may have said theirs later.
        _say(f"python -m {name}: rank {ending.rank} of {node.world} ended with {ending.code}: {ending.said}")
    sys.exit(ending.code)


def _say(line: str) -> None:
    click.echo(line, err=True)
