"""Sessions: one client, one link to a process, one Exchange. Opens, finds, sweeps, drains and closes them.

Processes are in `links`, messages to clients in `streams`. Of other nodes it knows only that they may own a session.
"""
