"""Sessions: one client, one link to a process, one Exchange. Opening, finding, sweeping, draining and closing them.

Owns no process (`links`), carries no bytes to clients (`streams`), and knows of other nodes only that a session may be
another's (`ownership`).
"""
