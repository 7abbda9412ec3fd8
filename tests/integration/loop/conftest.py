"""A whole run in miniature."""

from pathlib import Path

import pytest

from scope_selfplay.store.folder import RunFolder


@pytest.fixture(scope="session")
def finished(speaking_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing disturbed. Whoever changes it copies it first."""
    from tests.integration.loop.test_run import in_child, whole_run

    root = tmp_path_factory.mktemp("whole")
    assert in_child(whole_run, speaking_policy, root) == 0
    return RunFolder(root / "tiny")


@pytest.fixture(scope="session")
def half_policy(random_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random policy in bfloat16, as the models of the papers are."""
    from transformers import AutoTokenizer

    from scope_selfplay.inference.checkpoints import load_model, stored_dtype

    folder = tmp_path_factory.mktemp("half-policy")
    load_model(random_policy, precision="bfloat16").save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(random_policy)).save_pretrained(str(folder))
    assert stored_dtype(folder) == "bfloat16"
    return folder
