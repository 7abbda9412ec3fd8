"""Only the likeliest tokens that together have a share top_p are drawn."""

import numpy as np
import pytest

from scope_selfplay.inference.draws import Draw, draw_tokens

SHARES = np.array([0.1, 0.5, 0.15, 0.25])
LOGITS = np.log(SHARES)[None, :].astype(np.float32)
DRAWS = np.linspace(0, 0.999, 400)


def drawn(top_p: float) -> list[int]:
    sampled = [draw_tokens(LOGITS, [Draw(float(draw), 0, 0, top_p=top_p)]).tokens[0] for draw in DRAWS]
    return [int(token) for token in sampled]


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [(0.3, {1}), (0.5, {1}), (0.6, {1, 3}), (0.8, {1, 2, 3}), (0.95, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_tokens_beyond_the_share_are_never_drawn(top_p: float, tokens: set[int]) -> None:
    assert set(drawn(top_p)) == tokens


def test_a_batch_may_mix_shares() -> None:
    rows = np.repeat(LOGITS, 2, axis=0)
    tokens = draw_tokens(rows, [Draw(0.05, 0, 0, top_p=top_p) for top_p in (0.5, 1.0)]).tokens
    assert tokens.tolist() == [1, 0]
