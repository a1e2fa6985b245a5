"""The spawner: a small process that starts, watches and ends every backend on behalf of one node.

`client` is the node's side; everything else runs in the spawner itself. Standard library only,
and nothing of `app` outside this package: the spawner holds no secrets and no web code.
"""
