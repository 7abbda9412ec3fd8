"""The image that pods run: one that was really built, or one of a few kilobytes that is made here in no time.

The small one runs this interpreter and this checkout from where they lie on this machine. Its root is empty: what is in
it comes through `host_volumes`, read-only and at the same paths as here, so that starting a
pod costs neither a build nor a copy. A bind mount needs no rights on the folders above its source: an interpreter
below /root serves the pods' user 10001 all the same, as long as its own files may be read by everyone.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

NAME = "localhost/scope-selfplay-local:test"
REPOSITORY = Path(__file__).resolve().parents[2]
_BIN = "scope-test/bin"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64")


class Image(NamedTuple):
    name: str
    volumes: list[dict[str, Any]]
    """By `name`, `path` and `source`: what it needs of the host."""

    def pod(self, *more: dict[str, Any]) -> dict[str, Any]:
        """`cluster.pod` with its volumes and others."""
        needed = (*self.volumes, *more)
        mounts = [{"name": each["name"], "mountPath": each["path"], "readOnly": True} for each in needed]
        volumes = [{"name": each["name"], **each["source"]} for each in needed]
        return {"spec": {"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]}}


def served(
    image: Image, name: str, labels: dict[str, str], *volumes: dict[str, Any], port: int, **container: Any
) -> list[dict[str, Any]]:
    """A Deployment of one container of this image, and its Service."""
    spec = image.pod(*volumes)["spec"]
    spec["containers"][0] |= {"name": name, "image": image.name, **container}
    head: dict[str, Any] = {"metadata": {"name": name, "labels": labels}}
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": port, "targetPort": port}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", **head, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", **head, "spec": service},
    ]


def image_for_pods(folder: Path) -> Image | None:
    """SCOPE_IMAGE, which the nodes have; SCOPE_IMAGE_ARCHIVE, imported; or the small one, imported: None where there is
    nowhere to import it, CONTAINERD_ADDRESS not being set.
    """
    if given := os.environ.get("SCOPE_IMAGE"):
        return Image(given, [])
    address = os.environ.get("CONTAINERD_ADDRESS")
    if address is None:
        return None
    if built := os.environ.get("SCOPE_IMAGE_ARCHIVE"):
        return Image(_import(address, Path(built)), [])
    python = sys.executable
    commands = dict.fromkeys(("python", "python3"), f"exec {python}")
    commands["scope"] = f"exec {python} -m scope_selfplay.cli"
    return Image(import_commands(folder, NAME, commands), host_volumes())


def import_commands(folder: Path, name: str, commands: Mapping[str, str]) -> str:
    """The name of an image of these commands alone, imported where CONTAINERD_ADDRESS says."""
    return _import(os.environ["CONTAINERD_ADDRESS"], build(folder / "image.tar", name, commands))


def renamed(image: Image) -> Image:
    """The same under another name; where none can be made, another pod is as good."""
    if (address := os.environ.get("CONTAINERD_ADDRESS")) is None:
        return image._replace(
            volumes=[*image.volumes, {"name": "extra-none", "path": "/none", "source": {"emptyDir": {}}}]
        )
    name = f"{image.name}-newer"
    tag = ["ctr", "--address", address, "--namespace", "k8s.io", "images", "tag", "--force"]
    subprocess.run([*tag, image.name, name], check=True)
    return image._replace(name=name)


def _import(address: str, archive: Path) -> str:
    with tarfile.open(archive) as content:
        manifest = content.extractfile("manifest.json")
        assert manifest is not None
        # An archive may hold its image under several names.
        name = json.load(manifest)[0]["RepoTags"][0]
    ctr = ["ctr", "--address", address, "--namespace", "k8s.io", "images"]
    listed = subprocess.run([*ctr, "list", "--quiet"], capture_output=True, text=True, check=True).stdout
    if name in listed.split():
        subprocess.run([*ctr, "remove", name], check=True)
    subprocess.run([*ctr, "import", str(archive)], check=True, timeout=300)
    return str(name)


def host_volumes() -> list[dict[str, Any]]:
    """Volumes for the system's libraries, the interpreter, its environments and the checkout."""
    system = [path for path in map(Path, _SYSTEM) if path.is_dir() and not path.is_symlink()]
    packages = [Path(each) for each in sys.path if each.endswith("site-packages")]
    here = [Path(sys.base_prefix), Path(sys.prefix), *packages, REPOSITORY]
    # A folder inside another one that is mounted is there already.
    wanted = sorted({each.resolve() for each in (*system, *here)})
    outer = [each for each in wanted if not any(other in each.parents for other in wanted)]
    return [
        {
            "name": f"extra-host-{number}",
            "path": str(path),
            "source": {"hostPath": {"path": str(path), "type": "Directory"}},
        }
        for number, path in enumerate(outer)
    ]


def build(target: Path, name: str, commands: Mapping[str, str]) -> Path:
    """Write the image in the format of `docker save`: commands by name, lines of the shell that take `"$@"`."""
    layer = _layer(commands)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [
                f"PATH=/{_BIN}:/usr/local/bin:/usr/bin:/bin",
                f"PYTHONPATH={REPOSITORY}",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
                "OMP_NUM_THREADS=1",
            ],
            "User": "10001:10001",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, "config.json", json.dumps(config).encode(), 0o644)
        _add(archive, "manifest.json", json.dumps(manifest).encode(), 0o644)
        _add(archive, "layer.tar", layer, 0o644)
    return target


def _layer(commands: Mapping[str, str]) -> bytes:
    """The commands that manifests name, and the links of a merged /usr; mount points make themselves."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, line in commands.items():
            _add(archive, f"{_BIN}/{name}", f'#!/bin/sh\n{line} "$@"\n'.encode(), 0o755)
        for path in map(Path, _SYSTEM):
            if path.is_symlink():
                link = tarfile.TarInfo(path.name)
                link.type, link.linkname = tarfile.SYMTYPE, str(path.readlink())
                archive.addfile(link)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))
