"""Which process a session gets: the pool, its plan, the warm pool, the breaker, the last failures, and `:check`.

What a process is, and how it is started and ended, is in `processes`.
"""
