"""The component monitoring: what the dashboard asks for is exported, and Prometheus is let in to scrape it."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from retrieval.service import RetrieverMetrics
from scope_selfplay.cluster.check import applied_objects, config_of, packs_of
from scope_selfplay.cluster.objects import Pods, matches, planned_objects, pods_of
from scope_selfplay.driver.metrics import RunCollector
from scope_selfplay.store.folder import RunFolder
from tests.unit.controller.examples import PAPER
from tests.unit.controller.examples import config_of as config_with
from tests.unit.k8s.conftest import QWEN, REPOSITORY, rendered, with_components

MONITORING = REPOSITORY / "k8s" / "components" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def asked() -> set[str]:
    """Every metric that a panel or a variable of the dashboard names."""
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    queries += [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    plain = [re.sub(r'"[^"]*"|by \([^)]*\)', "", query).replace("label_values", "") for query in queries]
    return {name for query in plain for name in re.findall(r"\b(?:vllm:|scope_)[a-z0-9_:]+(?=[{,])", query)}


def series_of(families: Iterable[Metric]) -> Iterator[str]:
    for family in families:
        yield from (family.name + suffix for suffix in _SUFFIXES[family.type])


def of_vllm() -> Iterator[str]:
    """By vLLM's own source, of the version that the images take; tests/vllm asks a real one."""
    for line in (REPOSITORY / "tests" / "reference" / "vllm_metrics.txt").read_text().splitlines():
        name, kind = line.split()
        yield from (name + suffix for suffix in _SUFFIXES[kind])


def test_every_metric_of_the_dashboard_is_one_that_a_pod_exports(tmp_path: Path) -> None:
    retriever = RetrieverMetrics().render().decode()
    ours = {
        *series_of(RunCollector(RunFolder(tmp_path), config_with(PAPER)).collect()),
        *series_of(text_string_to_metric_families(retriever)),
    }
    # scope_model_*: that server needs torch, see tests/integration/k8s.
    mine = {name for name in asked() if not name.startswith("scope_model_")}
    assert len(mine) > 25 and {name.split("_")[1] for name in mine if name.startswith("scope_")} == {
        "run",
        "training",
        "retriever",
    }
    assert mine - ours - set(of_vllm()) == set()


def test_panels_share_no_place_and_no_number() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for one, two in combinations(places, 2):
        assert any(
            one[at] >= two[at] + two[size] or two[at] >= one[at] + one[size] for at, size in ("xw", "yh")
        )
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_prometheus_scrapes_every_pod_that_exports_and_no_other(tmp_path: Path) -> None:
    folder = with_components(tmp_path, QWEN, "monitoring")
    rendered(folder)
    objects = applied_objects(folder)
    config = config_of(objects, folder)
    by_kind = {
        body["kind"]: body for body in objects if body["metadata"]["name"].startswith("scope-monitoring")
    }
    (monitor,) = [body for body in objects if body["kind"] == "PodMonitor"]
    (dashboard,) = [body for body in objects if body["metadata"]["name"] == "scope-dashboard"]
    assert json.loads(dashboard["data"]["scope.json"]) == DASHBOARD
    # What runs share is no run's own: deleting a run leaves the dashboard.
    assert monitor not in rendered(folder) and dashboard not in rendered(folder)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (rule,) = by_kind["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": endpoint["port"]}]
    scraped = set()
    for pods in pods_of([*objects, *planned_objects(config, packs_of(objects, config.name))]):
        chosen = matches(monitor["spec"]["selector"], pods.labels)
        assert chosen == matches(by_kind["NetworkPolicy"]["spec"]["podSelector"], pods.labels)
        assert chosen == (endpoint["port"] in pods.ports), pods.owner
        if chosen:
            scraped.add(pods.labels["app.kubernetes.io/component"])
            assert {*monitor["spec"]["podTargetLabels"]} - {"scope/server"} <= pods.labels.keys()
    assert scraped == {"controller", "judge", "solver", "challenger", "retriever"}


def test_only_a_pod_that_is_prometheus_is_let_in() -> None:
    (policy,) = yaml.safe_load_all((MONITORING / "network.yaml").read_text())
    (peer,) = policy["spec"]["ingress"][0]["from"]
    prometheus = Pods("Pod/prometheus", {"app.kubernetes.io/name": "prometheus"}, {})
    assert matches(peer["podSelector"], prometheus.labels) and peer["namespaceSelector"] == {}
    assert not matches(peer["podSelector"], {"app.kubernetes.io/name": "scope-selfplay"})
