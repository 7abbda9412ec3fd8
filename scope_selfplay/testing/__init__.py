"""Fakes for tests and benchmarks, public and documented; nothing of the product imports them.

`chat_server` (a chat endpoint that answers by a script and fails as it is told to). A policy that follows a script is
`scope_selfplay.inference.ScriptedModel`.
"""
