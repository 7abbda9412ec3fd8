"""Which calls go by the proxy of the environment."""

import pytest

from scope_selfplay.net.client import proxy_for


@pytest.mark.parametrize(
    ("url", "is_outside"),
    [
        ("https://judge.example/v1/chat/completions", True),
        ("https://judge.example:8443/v1", True),
        ("https://judge.team.svc/v1", False),
        # Servers of a run: names without a dot, over HTTP.
        ("http://r1-judge:8000/v1", False),
        ("http://127.0.0.1:8000/v1", False),
    ],
)
def test_what_is_outside_goes_by_the_proxy(
    url: str, is_outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", ".svc,.cluster.local")
    assert proxy_for(url) == ("http://proxy.example:3128" if is_outside else None)
    monkeypatch.delenv("HTTPS_PROXY")
    assert proxy_for(url) is None
