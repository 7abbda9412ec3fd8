"""What both ends of every HTTP wire obey, the library's and the retriever's: nothing about what is sent over it.

`strict_json` (JSON as the standard has it) - `guarded_http` (which URLs and addresses may be called, which
pauses are kept) - `json_client` (a server that is asked until it answers, with a limit on what is read; one client per
event loop) - `serving` (an application's port and its server).
"""
