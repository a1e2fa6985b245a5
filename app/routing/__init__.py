"""Which node owns which session, and which nodes there are: routes, leases, heartbeats, notices, in memory or in Redis.

What is done about it (taking over, forwarding) is done in `cluster` and `transports.remote`.
"""
