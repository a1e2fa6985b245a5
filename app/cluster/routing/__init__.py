"""Which node owns which session, and which nodes there are: routes, leases, heartbeats, notices, in memory or in Redis.

Sessions are taken over in `app.cluster`, requests are forwarded in `app.http.remote`.
"""
