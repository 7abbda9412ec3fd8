"""`scope serve-model`: the in-process engine behind the completions wire of vLLM, token ids in and out.

`completions` (what a request may ask, what a response holds; pure) - `app` (engine, paths, metrics, draining) - `cli`.
"""
