"""A stranger's encoder in a process of its own.

`process` starts it and speaks with it by `protocol`; `worker` is its other end, behind the walls of
`sandbox`.
"""
