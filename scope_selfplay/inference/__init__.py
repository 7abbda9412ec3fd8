"""Engines that sample: transformers in this process or in several, a vLLM in this process, a server.

`in_process` stands on `slots`, `packed` and `draws`; `served` asks a server, `server` is one (`scope serve-model`).
torch is loaded within functions, or by modules that are imported so.
"""
