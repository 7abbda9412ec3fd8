"""Which engines a config may name, and what of it a run computes."""

from scope_selfplay.config.load import load_config


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
