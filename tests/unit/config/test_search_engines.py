"""Which engines a config may name, and what of it a run computes."""

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.load import load_config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{engine: {index: wiki}}", "search.engine.name: .* field required"),
        ("{engine: {name: solr}}", "elasticsearch"),
        ("{url: 'http://a', engine: {name: elasticsearch}}", "search.engine.index: .* field required"),
        ("{engine: {name: elasticsearch, index: wiki}}", "engine elasticsearch needs url"),
        ("{url: 'http://a', engine: {name: qdrant, index: wiki}}", "name the encoder"),
        ("{url: 'http://a', engine: {name: opensearch, index: wiki, encoder: minilm}}", "asked for words"),
        (
            "{url: 'http://a', engine: {name: lancedb, index: wiki}}",
            "found 'lancedb', input should be 'elasticsearch'",
        ),
    ],
)
def test_a_mistake_in_an_engine_says_what_was_expected(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, [f"search={given}"])


def test_a_run_of_another_engine_starts_no_retriever_unless_told_to() -> None:
    engine = "search={url: 'http://a', engine: {name: elasticsearch, index: wiki}}"
    assert load_config(None, ["search.url=http://a"]).cluster.retriever.serve
    assert not load_config(None, [engine]).cluster.retriever.serve
    assert not load_config(None, [engine, "cluster.retriever.cpu='2'"]).cluster.retriever.serve
    assert load_config(None, [engine, "cluster.retriever.serve=true"]).cluster.retriever.serve


def test_where_an_engine_is_does_not_change_what_a_run_computes_but_its_index_does() -> None:
    engine = "search={{engine: {{name: opensearch, index: {}}}, url: {}}}"
    here, there = (load_config(None, [engine.format("wiki", f"'http://{host}'")]) for host in ("a", "b"))
    assert here.hash == there.hash
    assert load_config(None, [engine.format("other", "'http://a'")]).hash != here.hash
    assert load_config(None, ["search.engine={name: scope, index: null}"]).hash == load_config(None).hash
