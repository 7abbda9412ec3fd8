"""The retriever: passages in, the few that answer a query out.

A corpus: `corpus` (its documents, as they were published), `passages` (as an index folder keeps them).
An index: `hits` (what a search gives), `bm25`, `encoder`, `bert_onnx`, `dense`.
Building one: `profiles` (which index, and what it costs), `build`, `build_dense`, `recall_gate`, `index_folder` (the
manifest and the files).
Searching it: `in_process` (without a server); `server`, `service`, `cache`, `batching`, `search_workers` (the path of
a query over HTTP), `serve_memory`, `wire`, `rendering`; `client` (a caller of servers).
Commands: `cli`, `build_command`.

Pure: `hits`, `wire`. Talk to the network: `server`, `client`. Importing the package or `in_process` loads
neither faiss nor onnxruntime nor torch.
"""
