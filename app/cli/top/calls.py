"""`calls`: the last calls of a tenant, as a table; with --follow each one when it is over."""

import argparse
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.cli.resources import list_objects, path_of, query_of, tell_of_page
from app.cli.rest import Rest, open_rest
from app.cli.tables import one_line
from app.text.terminal.text import printable

FOLLOW_S = 1.0
FOLLOWED = 1000  # calls that are looked back at, at most, between two looks
SEEN = 5000  # ids that are remembered


def show_calls(options: argparse.Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """`trunkline calls`. Raises GatewayError: the gateway does not answer, or refuses."""
    asked = {"by": options.by, "client_name": options.client}
    named, action = {name: value for name, value in asked.items() if value is not None}, "grouped" if options.by else ""
    if not options.follow:
        return list_objects(options, action, **named)
    query = query_of(options) | named
    with open_rest(options) as rest:
        return _follow(rest, path_of(options, action=action), query, as_json=options.json, pause=pause)


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
        tell_of_page(rows, {**page, "next_cursor": None})
        most = min(FOLLOWED, max(20, 4 * len(new)))
        pause(FOLLOW_S)


def _line(row: Mapping[str, Any]) -> str:
    words: Sequence[object] = (
        one_line(row.get("at")), row.get("outcome"), f"{one_line(row.get('duration_ms'))} ms", row.get("backend"),
        row.get("tool") or row.get("method"), row.get("subject"), row.get("client_name") or "-", row.get("request_id"),
    )  # fmt: skip
    return "  ".join(printable(str(word)) for word in words)
