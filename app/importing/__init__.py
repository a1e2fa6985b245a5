"""Reads other programs' lists of MCP servers: text in, entries out, each with what stands in its way.

Formats: `mcpServers` (Claude, Cursor, Windsurf, Cline), `servers` (VS Code), `mcp` (OpenCode), `mcp_servers` (Codex,
TOML) and the registry's `server.json`. Pure; what may be a secret is never invented, kept as a placeholder or shown.
"""

from app.importing.entry import EXISTS, Entry, is_done, normalised, settle
from app.importing.formats import FORMATS, MAX_SERVERS, looks_like_toml, parse
from app.importing.placeholders import ASK
from app.importing.reports import report, report_json

__all__ = [
    "ASK", "EXISTS", "FORMATS", "MAX_SERVERS", "Entry", "is_done", "looks_like_toml", "normalised", "parse", "report",
    "report_json", "settle",
]  # fmt: skip
