"""From the socket to a session: connections (`edge`), MCP endpoints (`transports`), sessions of other nodes (`remote`).

What all HTTP interfaces share is here: errors, problem documents, Host and Origin, request ids, health, pages.
"""
