"""What both ends of every HTTP wire obey, the library's and the retriever's: nothing about what is said on it.

`strict_json` (JSON as the standard has it) - `guarded_http` (which URLs and addresses may be called, how many
bytes are read, what pauses are kept) - `json_client` (a server that is asked until it answers) - `listening` (the port
of a server).
"""
