"""Reads other programs' lists of MCP servers: text in, entries with their problems out. Pure.

`formats.FORMATS` names the formats. Values that may be secret are never made up, left as placeholders or shown.
"""

from app.admin.importing._entry import EXISTS, Entry, is_done, normalised, settle
from app.admin.importing._formats import FORMATS, MAX_SERVERS, looks_like_toml, parse
from app.admin.importing._placeholders import ASK
from app.admin.importing._reports import report, report_json

__all__ = [
    "ASK", "EXISTS", "FORMATS", "MAX_SERVERS", "Entry", "is_done", "looks_like_toml", "normalised", "parse", "report",
    "report_json", "settle",
]  # fmt: skip
