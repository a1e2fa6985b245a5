"""What every HTTP surface shares: errors and problem documents, Host and Origin, ids of requests, health, plain pages.

No MCP and no administration: those stand in `transports` and `admin`, which import from here.
"""
