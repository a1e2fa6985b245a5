"""Sessions: one client, one connection to a backend, one Exchange. Opens, finds, sweeps, drains and closes them.

Messages to clients are in `streams`, requests that name no session in `sessionless`, processes in `app.backends`. Of
other nodes it knows only that they may own a session (`routes`).
"""
