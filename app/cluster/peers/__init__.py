"""How nodes speak to each other: pooled connections, credentials, late heads, drains, and what follows a node's death.
It knows nothing of sessions.
"""
