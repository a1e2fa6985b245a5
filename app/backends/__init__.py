"""Which process a session gets: the pool, its plan, the warm pool, the breaker and the last failures.

What a process is, and how it is started and ended, is in `processes`.
"""
