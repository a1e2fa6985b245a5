"""Reads other programs' lists of MCP servers: text in, entries with their problems out. Pure.

`formats.FORMATS` names the formats. Values that may be secret are never made up, left as placeholders or shown.
"""

from app.importing.entry import EXISTS, Entry, is_done, normalised, settle
from app.importing.formats import FORMATS, MAX_SERVERS, looks_like_toml, parse
from app.importing.placeholders import ASK
from app.importing.reports import report, report_json

__all__ = [
    "ASK", "EXISTS", "FORMATS", "MAX_SERVERS", "Entry", "is_done", "looks_like_toml", "normalised", "parse", "report",
    "report_json", "settle",
]  # fmt: skip
