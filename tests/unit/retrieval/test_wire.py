import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.folder import passage_line
from retrieval.wire import WireError, parse_request, render_response
from scope_selfplay.base.values import Document


def row(name: str, score: float = 1.0) -> tuple[bytes, float]:
    return passage_line(Document(id=name, title=f"Title of {name}", text="Text.")), score


@pytest.mark.parametrize(
    ("client", "body"),
    [
        ("Search-R1", {"queries": ["a", "b"], "topk": 3, "return_scores": True}),
        ("SkyRL", {"queries": None, "query": "a", "topk": 3, "return_scores": True}),
        ("slime", {"queries": ["a"], "topk": 3, "return_scores": True}),
        ("null topk", {"queries": ["a"], "topk": None, "return_scores": False}),
        ("extra fields", {"queries": ["a"], "user": "x"}),
    ],
)
def test_the_fields_clients_are_understood(client: str, body: dict[str, Any]) -> None:
    request = parse_request(json.dumps(body).encode())
    assert request.queries == (body.get("queries") or [body.get("query")])
    assert request.topk == 3


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "object"),
        (b"{}", 400, "neither"),
        (b'{"queries": ["a"], "queries": ["b"]}', 400, "twice"),
        (b'{"queries": ["a", " "]}', 400, "query 1 is empty"),
        (b'{"queries": [1]}', 400, "query 0 is a int"),
        (b'{"queries": {"a": 1}}', 400, "is a dict"),
        (b'{"queries": ["a"], "topk": 0}', 400, "topk is 0"),
        (b'{"queries": ["a"], "topk": true}', 400, "topk is True"),
        (b'{"queries": ["a"], "topk": 2.5}', 400, "topk is 2.5"),
        (b'{"queries": ["a"], "return_scores": 1}', 400, "return_scores"),
        (b'{"queries": ["a"], "max_tokens": 0}', 400, "max_tokens"),
        (json.dumps({"query": "x" * 16_385}).encode(), 413, "16,385 characters"),
        (json.dumps({"queries": ["x"] * 4097}).encode(), 413, "4,097 queries"),
    ],
)
def test_senseless_requests_are_refused_with_a_reason(body: bytes, status: int, message: str) -> None:
    with pytest.raises(WireError, match=message) as refused:
        parse_request(body)
    assert refused.value.status == status


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_rows_without_scores_satisfy_both_readers(queries: int) -> None:
    """The peer answers 500 to one or three such queries, and mixes rows and scores for two."""
    results = [[row(f"{place}-{rank}") for rank in range(3)] for place in range(queries)]
    body = json.loads(render_response(results, return_scores=False))
    for place, rows in enumerate(body["result"]):
        assert [found["id"] for found in rows] == [f"{place}-{rank}" for rank in range(3)]
        assert all(found["document"] == {"id": found["id"], "contents": found["contents"]} for found in rows)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_score_survives_the_wire_to_the_last_bit(score: float) -> None:
    body = json.loads(render_response([[row("a", score)]], return_scores=True))
    assert body["result"][0][0]["score"] == score
