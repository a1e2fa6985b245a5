"""Which process a session gets: the pool, its plan, the warm pool, the breaker and the last failures.

What a session sees of its process is in `connections`, servers that are reached by URL in `upstreams`. What a process
is, and how it is started and ended, is in `app.processes`.
"""
