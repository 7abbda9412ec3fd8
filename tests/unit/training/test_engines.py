"""Which engine samples from the policy in training, and that it can."""

from pathlib import Path
from typing import Any, cast

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.run.engines import vllm_base
from scope_selfplay.training import engines
from scope_selfplay.training.engines import Colocated


def test_a_vllm_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs vLLM, which is not installed; pip install"):
        Colocated(cast(Any, None), Path("m0"), ModelConfig(engine="vllm_colocated"), 300, 0)


@pytest.mark.parametrize("url", ["http://gpu:8000", "http://gpu:8000/", "http://gpu:8000/v1"])
def test_a_server_may_be_named_with_its_path_or_without(url: str) -> None:
    assert vllm_base(ModelConfig(engine="vllm_server", vllm_url=url)) == "http://gpu:8000"


def test_the_engine_is_what_a_run_computes_and_where_it_is_is_not() -> None:
    here = load_config(None, ["model.engine=vllm_server", "model.vllm_url=http://a:8000"])
    there = load_config(None, ["model.engine=vllm_server", "model.vllm_url=http://b:8000"])
    assert here.hash == there.hash != load_config(None).hash
