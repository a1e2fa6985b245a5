"""`calls`: the last calls of a tenant, as a table; with --follow each one when it is over."""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.cli.members import members_of
from app.cli.resources import print_json, print_table, query_text
from app.cli.rest import Rest, open_rest, segment
from app.cli.tables import one_line
from app.cli.usage.nouns import ALL
from app.text.terminal.text import printable

FIRST = (
    "at", "tenant", "tool", "outcome", "duration_ms", "backend", "subject", "client_name", "method", "session",
    "request_id",
)  # fmt: skip
FIRST_OF_GROUPS = ("name", "within", "count", "errors", "p50_ms", "p99_ms", "bytes_in", "bytes_out")
FOLLOW_S = 1.0
FOLLOWED = 1000  # calls that are looked back at, at most, between two looks
SEEN = 5000  # ids that are remembered


def show_calls(options: argparse.Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """`trunkline calls`. Raises GatewayError: the gateway does not answer, or refuses."""
    query = {name: query_text(value) for name, value in members_of(options.members).items()}
    with open_rest(options) as rest:
        path = f"/tenants/{segment(options.tenant)}/calls" + (":grouped" if options.by else "")
        named = {"by": options.by, "client_name": options.client}
        query |= {name: value for name, value in named.items() if value}
        if options.follow:
            return _follow(rest, path, query, as_json=options.json, pause=pause)
        rows, page = rest.items(path, query=query, most=options.limit)
    if options.json:
        print_json(rows)
    elif rows:
        print_table(rows, FIRST_OF_GROUPS if options.by else FIRST, of_tenant=options.tenant != ALL)
    else:
        print("there are no calls", file=sys.stderr)
    _tell_silent(page)
    return 0


def _follow(rest: Rest, path: str, query: Mapping[str, str], *, as_json: bool, pause: Callable[[float], None]) -> int:
    """Prints every call when it is over, oldest first, until it is interrupted."""
    seen = deque[str](maxlen=SEEN)
    most = 20
    while True:
        rows, page = rest.items(path, query=query, most=most)
        new = [row for row in reversed(rows) if str(row.get("id")) not in seen]
        for row in new:
            print(json.dumps(row) if as_json else _line(row), flush=True)
        seen.extend(str(row.get("id")) for row in new)
        _tell_silent(page)
        most = min(FOLLOWED, max(20, 4 * len(new)))
        pause(FOLLOW_S)


def _line(row: Mapping[str, Any]) -> str:
    words: Sequence[object] = (
        one_line(row.get("at")), row.get("outcome"), f"{one_line(row.get('duration_ms'))} ms", row.get("backend"),
        row.get("tool") or row.get("method"), row.get("subject"), row.get("client_name") or "-", row.get("request_id"),
    )  # fmt: skip
    return "  ".join(printable(str(word)) for word in words)


def _tell_silent(page: Mapping[str, Any]) -> None:
    if page.get("silent_nodes"):
        print(f"trunkline: silent_nodes: {one_line(page['silent_nodes'])}", file=sys.stderr)
