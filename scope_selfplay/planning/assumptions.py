"""What no setting has: every number that a plan rests on beside the config, by name."""

from typing import NamedTuple


class Assumptions(NamedTuple):
    """Rates are per GPU for a model of 8 billion parameters, and scale with its size."""

    acceptance: float = 0.4
    """Share of candidates that task making keeps; no paper states one (SCOPE, appendix G: batches of 200 to 500
    candidates until 5,120 are kept)."""
    gates_passed: float = 0.7
    """Share of candidates that pass the gates; all of those become held-out tasks."""
    criteria: int = 4
    """Criteria of a rubric (SCOPE, appendix G: 3 to 5)."""
    flat_share: float = 0.3
    """Share of groups without variance, which routing sends to the design; no paper states one for these tasks."""
    rollout_tokens: int = 1500
    """Sampled tokens of a rollout, all turns."""
    read_tokens: int = 2500
    """Tokens of a rollout that were read: prompt and search results."""
    judge_prompt_tokens: int = 600
    """Tokens of a judge prompt without what is judged: instructions, task, rubric."""
    answer_tokens: int = 600
    """Tokens of an answer; a judge reads one, or as many as it compares, or the rollouts behind them."""
    document_tokens: int = 1200
    """Tokens of the source document and search results that a rubric is written from."""
    judge_tokens: int = 500
    """Tokens that the judge writes per call, thinking included."""
    decode_rate: float = 3000.0
    """Tokens per second that an engine writes with full batches."""
    prefill_rate: float = 20_000.0
    """Tokens per second that an engine reads."""
    passages: int = 21_015_324
    """Passages of the retriever's corpus (DPR's Wikipedia of 2018)."""
    encode_rate: float = 5.5
    """Passages of 153 tokens that one CPU core encodes per second: measured, E5-base's shape in ONNX Runtime on a busy
    core with AVX-512 (docs/retrieval.md)."""
    gpu_encode_rate: float = 3000.0
    """Passages that a GPU encodes per second; not measured. The operations alone would allow four times as many."""
    searches: float = 3.0
    """Searches of a Solver's rollout."""
    query_rate: float = 22.0
    """Queries of 19 tokens that one CPU core encodes and searches per second: measured as `encode_rate`, one by one."""
    flops: float = 990e12
    """Peak bf16 operations per second of the GPU."""
    utilisation: float = 0.35
    """Share of the peak that a training pass reaches."""
    gpu_gib: float = 79.0
    """Memory of a GPU (an H100 of 80 GB)."""
    text_bytes: float = 5.0
    """Bytes on disk of a token of text in a record."""
    context_gib: float = 2.5
    """Memory of a GPU that CUDA, NCCL and fragments take."""
    process_gib: float = 6.0
    """Memory of the host that one training process takes beside its tensors: libraries, CUDA, a batch."""


SHARES = ("acceptance", "gates_passed", "flat_share", "utilisation")
"""Assumptions that are at most 1."""
