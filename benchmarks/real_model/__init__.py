"""A pretrained model of 135M parameters through the whole method, on two cores (docs/real-model.md).

`traces` (what the supervised start learns from) -> `seeds` (a seed's folder, by the commands that a user types) ->
`page` (tables of what is in the folders).
"""
