"""What a schema cannot know: planted mistakes, each found and named."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from scope_selfplay.k8s.check import config_of, packs_of
from scope_selfplay.k8s.check_references import reference_problems
from scope_selfplay.k8s.objects import planned_objects
from tests.unit.k8s.conftest import REPOSITORY, applied

Objects = list[dict[str, Any]]
TINY = REPOSITORY / "k8s/runs/tiny"


@pytest.fixture
def objects() -> Objects:
    given = applied(TINY)
    return copy.deepcopy([*given, *planned_objects(config_of(given, TINY), packs_of(given, "tiny"))])


def find(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    return next(body for body in objects if body["kind"] == kind and body["metadata"]["name"] == name)


def without(kind: str, name: str) -> Callable[[Objects], None]:
    return lambda objects: objects.remove(find(objects, kind, name))


def changed(kind: str, name: str, path: str, value: Any) -> Callable[[Objects], None]:
    def change(objects: Objects) -> None:
        place: Any = find(objects, kind, name)
        *way, last = path.split("/")
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[int(last) if isinstance(place, list) else last] = value

    return change


POD = "spec/template/spec"
MISTAKES = [
    (without("ConfigMap", "tiny-config"), "mounts ConfigMap tiny-config, which does not exist"),
    (without("ConfigMap", "tiny-prompts-embedded"), "ConfigMap tiny-prompts-embedded"),
    (without("PersistentVolumeClaim", "scope-data"), "the claim scope-data, which does not exist"),
    (without("ServiceAccount", "scope-worker"), "ServiceAccount scope-worker, which does not exist"),
    (without("Role", "scope-controller"), "binds Role/scope-controller"),
    (without("Service", "tiny-judge"), "there is no Service tiny-judge"),
    (without("NetworkPolicy", "scope-servers"), "refuses Job/tiny-i"),
    (without("NetworkPolicy", "scope-worker"), "may not call Deployment/tiny-"),
    (changed("Service", "tiny-judge", "spec/selector/scope~server", "other"), "its selector matches no pods"),
    (changed("Service", "tiny-judge", "spec/ports/0/targetPort", "web"), "port web"),
    (changed("Deployment", "tiny-judge", "spec/selector/matchLabels/x", "y"), "does not match its own pods"),
    (changed("Job", "tiny-controller", f"{POD}/volumes/0/name", "date"), "mounts the volume data"),
    (changed("Job", "tiny-controller", "metadata/labels/scope~run", 1), "not text; put it in quotes"),
    (changed("NetworkPolicy", "scope-challenger", "spec/podSelector/matchLabels/x", "y"), "matches no pods"),
    (changed("NetworkPolicy", "scope-servers", "spec/ingress/0/ports/0/port", "web"), "names port web"),
    (lambda objects: objects.append(objects[0]), "appears twice"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_planted_mistake_is_found(
    objects: Objects, mistake: Callable[[Objects], None], message: str
) -> None:
    assert reference_problems(objects) == []
    mistake(objects)
    assert any(message in str(problem) for problem in reference_problems(objects)), reference_problems(
        objects
    )
