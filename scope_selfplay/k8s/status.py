"""`scope k8s status` and `logs`: a run's status ConfigMap, its Jobs in the order of their creation, its servers."""

from typing import Any

from scope_selfplay.controller.manifests import ATTEMPT, ITERATION, RUN, SERVER, STAGE, status_name
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.kubectl import Body, Kubectl


def read_status(cluster: Kubectl, run: str) -> dict[str, Any]:
    """`status` (the ConfigMap's data), `jobs` and `servers`, as plain data."""
    selector = f"{RUN}={run}"
    status_map = cluster.get("configmaps", status_name(run))
    jobs = sorted(cluster.objects("jobs", selector), key=_created)
    if status_map is None and not jobs:
        raise ConfigError(
            f"{run}: no run of this name in the namespace; apply its folder, or give --namespace"
        )
    return {
        "run": run,
        "status": (status_map or {}).get("data") or {},
        "jobs": [_job(body) for body in jobs],
        "servers": [
            {
                "name": body["metadata"]["name"],
                "server": body["metadata"]["labels"].get(SERVER, ""),
                "ready": bool((body.get("status") or {}).get("readyReplicas", 0)),
            }
            for body in cluster.objects("deployments", selector)
        ],
    }


def newest_job(cluster: Kubectl, run: str, stage: str | None) -> str:
    """The name of the newest Job of a run, of one stage when given. Raises ConfigError when there is none."""
    selector = f"{RUN}={run}" + (f",{STAGE}={stage}" if stage else "")
    jobs = sorted(cluster.objects("jobs", selector), key=_created)
    if not jobs:
        raise ConfigError(
            f"{run}: no Job with {selector}; finished ones are deleted after cluster.keep seconds"
        )
    return str(jobs[-1]["metadata"]["name"])


def show_status(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for key, value in found["status"].items():
        # JSON values are data for programs, not for a person.
        if not str(value).lstrip().startswith(("{", "[")):
            console.print(f"{key}: {value}", markup=False, highlight=False)
    for title, columns in (
        ("jobs", ("name", "iteration", "stage", "attempt", "state")),
        ("servers", ("name", "ready")),
    ):
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in found[title]:
            table.add_row(*(str(row[column]) for column in columns))
        if found[title]:
            console.print(table)


def _job(body: Body) -> dict[str, Any]:
    labels, status = body["metadata"].get("labels") or {}, body.get("status") or {}
    ended = [item["type"] for item in status.get("conditions") or [] if item["status"] == "True"]
    named = [kind.lower() for kind in ("Complete", "Failed", "Suspended") if kind in ended]
    return {
        "name": body["metadata"]["name"],
        "iteration": labels.get(ITERATION, ""),
        "stage": labels.get(STAGE, "controller"),
        "attempt": labels.get(ATTEMPT, ""),
        "state": named[0] if named else "running" if status.get("active") else "waiting",
        "started": status.get("startTime"),
    }


def _created(body: Body) -> str:
    return str(body["metadata"].get("creationTimestamp", ""))
