"""Backends that are reached by URL: servers elsewhere that speak Streamable HTTP or HTTP+SSE.

`_session.py` has an upstream session that sessions use like a process: lines in, lines out. What a message needs in its
headers, what a stream says, what a status means and when to reconnect is decided without I/O (`requests`, `events`,
`statuses`). No process is started here, and of a client's request only its messages are passed on.
"""
