"""`planned.yaml` in every iteration's folder: what the controller will create there, for review, diffs and GitOps.

No kustomization lists it, so that nothing of it is applied. Were it applied, the cluster would delete it all: its owner
does not exist.
"""

from pathlib import Path

from scope_selfplay.k8s.check import applied_objects, config_of, packs_of
from scope_selfplay.k8s.objects import planned_objects
from scope_selfplay.k8s.patches import yaml_text

PLANNED = "planned.yaml"
_NOTE = (
    "# What the controller will create in this iteration; `scope k8s render` writes it, for kubectl diff and review.\n"
    "# Not applied: the controller creates it, stage by stage. Owner, prompt hash, attempts are known when it runs.\n"
)


def planned_files(folder: Path) -> dict[str, str]:
    """Every planned.yaml by its path in the run's folder, of the config as the controller reads it: with components.

    The held-out tasks come with iteration 1. Raises ConfigError where the folder does not render.
    """
    applied = applied_objects(folder)
    config = config_of(applied, folder)
    packs = packs_of(applied, config.name)
    files = {}
    for iteration in range(1, config.iterations + 1):
        bodies = planned_objects(config, packs, (0, 1) if iteration == 1 else (iteration,))
        text = "".join("---\n" + yaml_text(body) for body in bodies)
        files[f"iteration-{iteration:02d}/{PLANNED}"] = _NOTE + text
    return files
