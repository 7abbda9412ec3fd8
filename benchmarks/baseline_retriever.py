"""The field's retrieval server, rebuilt from its design as the baseline of `benchmarks/retrieval.py`.

One process; a synchronous endpoint in the framework's thread pool; per request one `transformers` forward
pass over its queries and one FAISS search; the corpus through `datasets`; documents as Python objects through
a JSON encoder. No queue, no cache, no batching across requests.

    python -m benchmarks.baseline_retriever MODEL INDEX_FOLDER PORT
"""

import sys
from pathlib import Path
from typing import Any

import datasets
import faiss
import numpy as np
import torch
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoModel, AutoTokenizer


class Query(BaseModel):
    queries: list[str]
    topk: int = 3
    return_scores: bool = False


class Retriever:
    def __init__(self, model: str, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._model = AutoModel.from_pretrained(model).eval()
        # The peer reads an IndexFlat from disk into memory.
        vectors = np.load(folder / "vectors.npy")
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)
        files = str(folder / "passages.jsonl")
        self._corpus = datasets.load_dataset(
            "json", data_files=files, split="train", cache_dir=str(folder / "cache")
        )

    @torch.no_grad()
    def encode(self, queries: list[str]) -> Any:
        texts, padded = [f"query: {query}" for query in queries], {"padding": True, "truncation": True}
        inputs = self._tokenizer(texts, max_length=256, return_tensors="pt", **padded)
        hidden = self._model(**inputs, return_dict=True).last_hidden_state
        mask = inputs["attention_mask"][..., None].bool()
        pooled = hidden.masked_fill(~mask, 0.0).sum(dim=1) / inputs["attention_mask"].sum(dim=1)[..., None]
        return torch.nn.functional.normalize(pooled, dim=-1).numpy()

    def search(self, query: Query) -> list[list[dict[str, Any]]]:
        scores, rows = self._index.search(self.encode(query.queries), query.topk)
        documents = iter([self._corpus[int(row)] for row in rows.reshape(-1)])
        return [[{"document": next(documents), "score": float(score)} for score in each] for each in scores]


def build_app(retriever: Retriever) -> Starlette:
    async def retrieve(request: Request) -> Response:
        query = Query.model_validate_json(await request.body())
        return JSONResponse({"result": await run_in_threadpool(retriever.search, query)})

    return Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])])


if __name__ == "__main__":
    app = build_app(Retriever(sys.argv[1], Path(sys.argv[2])))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="warning", access_log=False)
