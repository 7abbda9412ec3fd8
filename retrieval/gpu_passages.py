"""Passages encoded by torch on a GPU, for an index whose queries ONNX Runtime encodes with the same model.

Half precision moves a vector by less than a thousandth; the recall gate compares what is found with the queries that
are served. Nothing but a build on a GPU loads torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrieval.bert_onnx import Pooling, read_pooling
from retrieval.encoder import Family, Vectors, model_folder
from scope_selfplay.errors import CheckpointError, ConfigError

BATCH = 512
"""Passages of one forward pass: sorted by length, so that little of it is padding."""


class GpuPassages:
    """The passage side of an encoder on a device of torch; `cpu` is for tests."""

    def __init__(self, source: str, family: Family, device: str = "cuda") -> None:
        """Raises ConfigError without torch or a GPU, CheckpointError for a model that cannot be loaded."""
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError:
            raise ConfigError("--device cuda needs torch: pip install 'scope-selfplay[train]'") from None
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch sees no GPU here; leave it out to encode on the CPU")
        folder = model_folder(source)
        self._torch, self._device, self._family = torch, device, family
        self._is_cls = read_pooling(folder) is Pooling.CLS
        number = torch.float16 if device == "cuda" else torch.float32
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model: Any = AutoModel.from_pretrained(
                folder, trust_remote_code=False, use_safetensors=True, dtype=number
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{folder}: the encoder cannot be loaded: {reason}") from None
        self._model = model.to(device).eval()

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (texts, dimensions)."""
        whole = [self._family.passage_prefix + text for text in texts]
        order = sorted(range(len(whole)), key=lambda place: len(whole[place]), reverse=True)
        vectors = np.empty((len(whole), int(self._model.config.hidden_size)), dtype=np.float32)
        for first in range(0, len(order), BATCH):
            places = order[first : first + BATCH]
            vectors[places] = self._encode([whole[place] for place in places])
        return vectors

    def _encode(self, texts: list[str]) -> Vectors:
        torch = self._torch
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._family.max_tokens, return_tensors="pt"
        ).to(self._device)
        with torch.inference_mode():
            states = self._model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            pooled = states[:, 0] if self._is_cls else (states * mask).sum(1) / mask.sum(1)
            return np.asarray(torch.nn.functional.normalize(pooled, dim=-1).cpu(), dtype=np.float32)
