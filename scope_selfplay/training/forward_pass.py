"""Log-probabilities of one pass over rows, computed without most of their padding.

TRL pads prompts on the left and completions on the right, and has the model compute all of it. Here the tokens of a row
stand together: rows are padded on the right alone, where a causal model needs no mask for the padding, or, under an
attention kernel that keeps sequences apart by their positions, they are packed one behind the other as a single row.
"""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad


class TokenScores(NamedTuple):
    """Per token of the completions, 0 where there is padding."""

    logps: Any
    entropies: Any


def packs_rows(config: Any) -> bool:
    """Whether the attention of a model's config keeps packed rows apart at no cost, as FlashAttention's kernels do."""
    return str(config._attn_implementation).startswith("flash_attention")


def score_tokens(
    model: Any,
    input_ids: Any,
    attention_mask: Any,
    completion: int,
    *,
    filler: int,
    packed: bool,
    wanted: Any = None,
    temperature: float = 1.0,
) -> TokenScores:
    """Scores the last `completion` columns of (rows, tokens); `model` has TRL's fused head, which knows `temperature`.

    Where `wanted`, (rows, completion), is given, tokens that are not wanted score 0.
    """
    real = attention_mask.bool()
    labels = input_ids.clone()
    labels[:, :-completion] = -100
    if wanted is not None:
        labels[:, -completion:].masked_fill_(~wanted, -100)
    lengths = real.sum(dim=1)
    if packed:
        within = torch.ones_like(lengths.max()[None]).expand(1, int(lengths.sum())).bool()
        places = {"position_ids": (real.cumsum(dim=1) - 1)[real][None], **_boundaries(lengths)}
    else:
        columns = torch.arange(int(lengths.max()), device=input_ids.device)
        within, places = columns[None] < lengths[:, None], {}
    ids = torch.full_like(within, filler, dtype=torch.long).masked_scatter(within, input_ids[real])
    targets = torch.full_like(within, -100, dtype=torch.long).masked_scatter(within, labels[real])
    if wanted is not None and ids.device.type == "cpu":
        log_probs, found = _scores_of_logits(model, ids, targets, temperature)
    else:
        outputs = model(input_ids=ids, labels=targets, fused_lm_head=True, **places)
        log_probs, found = outputs.log_probs, outputs.entropy

    def in_columns(scores: Any) -> Any:
        # What the head returns for a token stands one place before it.
        of_tokens = pad(scores, (1, 0))[within]
        return of_tokens.new_zeros(real.shape).masked_scatter(real, of_tokens)[:, -completion:]

    return TokenScores(in_columns(log_probs), None if found is None else in_columns(found))


def _scores_of_logits(model: Any, ids: Any, labels: Any, temperature: float) -> TokenScores:
    """What the fused head returns, (rows, tokens - 1), by way of the logits of the few tokens that have a label.

    On a CPU the fused head (TRL 1.16) takes a dozen passes over words times tokens, two thirds of an update of 135M
    parameters.
    """
    targets = labels[:, 1:]
    said = targets != -100
    columns = said.any(dim=0).nonzero().flatten()
    kept = said[:, columns]
    logits = model(input_ids=ids, logits_to_keep=columns).logits[kept].float()
    found = (logits / temperature).log_softmax(dim=-1)
    log_probs = found.gather(-1, targets[said][:, None])[:, 0]
    with torch.no_grad():
        entropies = -(found.exp() * found).sum(dim=-1)
    return TokenScores(
        *(each.new_zeros(said.shape).masked_scatter(said, each) for each in (log_probs, entropies))
    )


def _boundaries(lengths: Any) -> dict[str, Any]:
    """Where packed rows begin and end, for kernels that take it: found once, not in every layer."""
    ends = pad(lengths.cumsum(dim=0), (1, 0)).int()
    longest = int(lengths.max())
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
