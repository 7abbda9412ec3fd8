"""Objects against the schemas of Kubernetes releases, which the package `kubernetes-validate` brings along.

Its own `validate` reads several megabytes for every object; here each schema is read once.
"""

import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check_references import ManifestProblem
from scope_selfplay.k8s.objects import Body, name_of

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))


def is_installed() -> bool:
    return importlib.util.find_spec("kubernetes_validate") is not None


def schema_problems(objects: Sequence[Body], versions: Sequence[str] = VERSIONS) -> list[ManifestProblem]:
    """Every object that one of the releases would not take; fields that a release does not know count.

    Raises ConfigError where the package is missing.
    """
    if not is_installed():
        raise ConfigError("kubernetes-validate: not installed; pip install 'scope-selfplay[k8s]'")
    return [problem for version in versions for body in objects for problem in _problems(body, version)]


def _problems(body: Body, version: str) -> list[ManifestProblem]:
    # rbac.authorization.k8s.io/v1 -> rbac-v1, as the files are called.
    api = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", str(body.get("apiVersion")))
    validator = _validator(version, str(body.get("kind")).lower(), api)
    if validator is None:
        return [
            ManifestProblem(
                name_of(body), f"Kubernetes {version} has no {body.get('kind')} of {body.get('apiVersion')}"
            )
        ]
    return [
        ManifestProblem(
            name_of(body),
            f"Kubernetes {version}: {error.json_path.removeprefix('$.')}: {error.message[:300]}",
        )
        for error in validator.iter_errors(dict(body))
    ]


@cache
def _validator(version: str, kind: str, api: str) -> Any:
    import jsonschema
    import referencing
    from kubernetes_validate.utils import schema_contents

    try:
        schema = schema_contents(f"{_folder(version)}/{kind}-{api}.json", version)
    except FileNotFoundError:
        return None
    registry = referencing.Resource.from_contents(schema) @ _definitions(version)
    return jsonschema.validators.Draft202012Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Any:
    import referencing
    from kubernetes_validate.utils import schema_contents

    definitions = schema_contents(f"{_folder(version)}/_definitions.json", version)
    return referencing.Resource.from_contents(definitions) @ referencing.Registry()


def _folder(version: str) -> str:
    from kubernetes_validate.utils import all_versions

    full = [each for each in all_versions() if each.startswith(f"{version}.")][-1]
    return f"kubernetes-json-schema/v{full}-local-strict"
