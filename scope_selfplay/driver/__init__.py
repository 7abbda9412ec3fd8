"""What comes next, and the process that sees to it: on this machine and in Kubernetes.

`plan`, `attempts`, `waiting` and `observed` are pure; `api` alone knows the kubernetes client.
"""
