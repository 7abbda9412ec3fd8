"""The one place that talks to a cluster: `kubectl`, with whatever context and rights it has."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.cluster.pods import Body

_TIMEOUT = 60.0
_DOWN = (
    *("connection refused", "was refused", "no such host", "no route to host"),
    *("timeout", "timed out", "unable to connect", "tls handshake"),
)
# What kubectl's libraries log about themselves, such as `E1122 03:49:10.399353   22825 memcache.go:265] ...`.
_LOGGED = re.compile(r"[EWIF]\d{4} [^]]*\] ")


def kustomize(folder: Path) -> list[Body]:
    """The objects of a kustomization. Raises ConfigError with kustomize's reason."""
    done = run("kustomize", str(folder))
    if done.returncode != 0:
        raise ConfigError(f"{folder}: does not render: {' '.join(_reasons(done.stderr))[:300]}")
    return [body for body in yaml.safe_load_all(done.stdout) if body]


class Kubectl:
    """One namespace, the context's own when None."""

    def __init__(self, namespace: str | None = None) -> None:
        self._where = ["--namespace", namespace] if namespace else []

    def objects(self, kind: str, selector: str = "", *, everywhere: bool = False) -> Sequence[Body]:
        """Those of the namespace, or of all. Raises OutsideError for a cluster that does not answer, ConfigError for
        one that refuses."""
        more = ["--selector", selector] if selector else []
        more += ["--all-namespaces"] if everywhere else []
        items: list[Body] = json.loads(self._output("get", kind, *more, "--output=json")).get("items", [])
        return items

    def seen(self, kind: str, *, everywhere: bool = False) -> Sequence[Body]:
        """As `objects`; none where this user may not look, or the cluster has no such kind."""
        with suppress(ConfigError):
            return self.objects(kind, everywhere=everywhere)
        return ()

    def get(self, kind: str, name: str) -> Body | None:
        """None where it does not exist; raises as `objects` does."""
        text = self._output("get", kind, name, "--output=json", "--ignore-not-found")
        body: Body | None = json.loads(text or "null")
        return body

    @property
    def namespace(self) -> str:
        """The namespace that is asked."""
        if self._where:
            return self._where[1]
        return self._run("config", "view", "--minify", "--output=jsonpath={..namespace}").stdout or "default"

    def may(self, verb: str, resource: str) -> bool:
        return self._run("auth", "can-i", verb, resource).stdout.strip() == "yes"

    def refusals(self, folder: Path) -> list[str]:
        """What the server would refuse of a kustomization; nothing is changed.

        Raises OutsideError for a cluster that does not answer.
        """
        done = self._run("apply", "--dry-run=server", "--kustomize", str(folder), "--output=name")
        if done.returncode == 0:
            return []
        lines = _reasons(done.stderr)
        # A server that reports something else as down, such as a webhook, has answered.
        for line in lines:
            if _is_down(line) and not line.startswith("Error from server"):
                # Apply's own advice, to turn validation off, does not help here.
                self.version()
                raise _down(line)
        # To bind a Role takes its rights, unless one may bind any: of one that a dry run did not make none are known.
        return [line[:300] for line in lines if "roles.rbac" not in line or not line.endswith("not found")]

    def version(self) -> str:
        body = json.loads(self._output("version", "--output=json"))
        return str(body.get("serverVersion", {}).get("gitVersion", "unknown"))

    def create(self, body: Body) -> None:
        """Raises as `objects` does."""
        self._output("create", "--filename=-", text=json.dumps(body))

    def delete(self, kind: str, name: str) -> None:
        """Without waiting, and without an error where it is gone or the cluster is away."""
        self._run("delete", kind, name, "--wait=false", "--ignore-not-found")

    def log(self, pod: str, lines: int) -> str:
        """The end of what a pod said; the reason where there is nothing yet."""
        done = self._run("logs", pod, f"--tail={lines}")
        return done.stdout or _reasons(done.stderr)[-1]

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A kubectl that runs beside us, for as long as it takes."""
        pipe = subprocess.PIPE
        return subprocess.Popen([_program(), *self._where, *arguments], stdin=pipe, stdout=pipe, stderr=pipe)

    def _output(self, *arguments: str, text: str | None = None) -> str:
        done = self._run(*arguments, text=text)
        if done.returncode == 0:
            return done.stdout
        line = _reasons(done.stderr)[-1]
        raise _down(line) if _is_down(line) else ConfigError(f"the cluster refuses: {line[:300]}")

    def _run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return run(*self._where, "--request-timeout=20s", *arguments, text=text)


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """`text` is its input. Raises ConfigError without kubectl, OutsideError when it takes too long."""
    command = [_program(), *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT, input=text
        )
    except subprocess.TimeoutExpired:
        raise OutsideError(
            f"kubectl {arguments[0]}: no answer in {_TIMEOUT:.0f} s; check that the cluster is up"
        ) from None


def _program() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise ConfigError(
            "kubectl: not found; install it (1.21 or newer has kustomize inside), see kubernetes.io/docs/tasks/tools"
        )
    return found


def last_reason(said: bytes) -> str:
    """The last line of what a kubectl wrote to its stderr."""
    return _reasons(said.decode(errors="replace"))[-1][:300]


def _is_down(line: str) -> bool:
    return any(sign in line.lower() for sign in _DOWN)


def _down(line: str) -> OutsideError:
    reason = line.removesuffix(" - did you specify the right host or port?")[:300]
    return OutsideError(
        f"the cluster does not answer: {reason}; see `kubectl config get-contexts` and `kubectl cluster-info`"
    )


def _reasons(text: str) -> list[str]:
    """kubectl's own lines, the last of which is the reason of its failure; never empty."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not _LOGGED.match(line)]
    return own or [_LOGGED.sub("", line) for line in lines[-1:]] or ["no reason given"]
