"""The retriever: passages in, the few that answer a query out.

Reading order: `passages`, `readers`, `chunking` (a corpus on disk), `hits` (what a search returns), `bm25`,
`encoder`, `dense` (the indexes), `profiles`, `build`, `gate`, `manifest` (how an index is made and trusted),
`in_process` (a searcher without a server), `wire`, `cache`, `batching`, `workers`, `service`, `server` (the
HTTP server), `client`, `router` (its two callers), `cli`.

Pure: `hits`, `chunking`, `profiles`, `wire`. Talks to the disk: `passages`, `readers`, `manifest`, `build`,
`bm25`, `dense`, `encoder`. Talks to the network: `server`, `client`, `router`. Importing the package or
`in_process` loads neither faiss nor onnxruntime nor torch.
"""
