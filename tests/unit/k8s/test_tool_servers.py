"""A server of tools in a run's folder: who may call it, and what `scope k8s check` says where nobody may."""

import shutil
from pathlib import Path

import pytest
import yaml

from scope_selfplay.cluster.check import check_folder
from tests.cluster.image import Image, served
from tests.unit.k8s.conftest import QWEN, text_of, with_components

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the folders")

LABELS = {
    "app.kubernetes.io/name": "scope-selfplay",
    "app.kubernetes.io/component": "tools",
    "tool": "flights",
}
IMAGE = Image(f"registry.example/flights@sha256:{'0' * 64}", [])
FLIGHTS = served(IMAGE, "flights", LABELS, port=80, ports=[{"name": "http", "containerPort": 9000}])
FLIGHTS[1]["spec"]["ports"][0]["targetPort"] = "http"
URL = "http://flights/mcp"


def problems(top: Path, url: str, *components: str, with_server: bool = True) -> list[str]:
    folder = with_components(
        top, QWEN, *components, text=text_of(QWEN, tools=["open", {"mcp": {"url": url}}])
    )
    if with_server:
        (folder / "flights.yaml").write_text(yaml.safe_dump_all(FLIGHTS))
        kustomization = folder / "kustomization.yaml"
        own = yaml.safe_load(kustomization.read_text())
        own["resources"] = ["flights.yaml"]
        kustomization.write_text(yaml.safe_dump(own))
    return [f"{problem.where}: {problem.what}" for problem in check_folder(folder).problems]


def test_trainers_and_workers_reach_the_tools_of_the_run(tmp_path: Path) -> None:
    assert problems(tmp_path, URL, "tool-servers") == []


def test_without_the_component_each_side_that_is_closed_is_named(tmp_path: Path) -> None:
    found = problems(tmp_path, URL)
    said = "may not call Deployment/flights: no NetworkPolicy lets it out to port 9000"
    assert any(said in each for each in found)


def test_tools_outside_need_a_way_out(tmp_path: Path) -> None:
    (found,) = problems(tmp_path / "a", "https://maps.example/mcp", with_server=False)
    assert found.startswith("tools.1.mcp.url: names https://maps.example/mcp")
    assert "trainer and worker" in found
    assert problems(tmp_path / "b", "https://maps.example/mcp", "external-servers", with_server=False) == []
