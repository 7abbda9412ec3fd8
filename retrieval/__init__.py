"""The retriever: passages in, the few that answer a query out; in an image of its own.

An index is built by `build` from `corpus`, encoded by `encoder`, searched by `bm25` or `dense`. A query over HTTP goes
through `server`, `service` and `workers`; `client` asks, or searches in this process. Importing the package loads
neither faiss nor onnxruntime nor torch.
"""
