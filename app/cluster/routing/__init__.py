"""Which node owns which session, and which nodes there are: routes, leases, heartbeats, notices, in memory or in Redis.

Taking over sessions and forwarding requests is done in `cluster` and `transports.remote`.
"""
