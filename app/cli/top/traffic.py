"""`inspect`: opens an inspection, and shows its messages. `inspections messages`: those of an open one."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.cli.resources import print_json, print_table
from app.cli.rest import Rest, open_rest, segment
from app.cli.tables import one_line
from app.errors import GatewayError, InvalidRequest
from app.text.terminal.text import printable

FIRST = (
    "number",
    "at",
    "session",
    "side",
    "direction",
    "kind",
    "method",
    "tool",
    "member",
    "took_ms",
    "size",
    "pair",
    "payload",
)
FOLLOW_S = 1.0
PAGE = 500


def inspect_session(options: argparse.Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """`trunkline inspect`. With --follow it closes the inspection when it is interrupted. Raises GatewayError."""
    if (options.session is None) == (options.backend is None):
        raise InvalidRequest("either the id of a session or --backend is needed")
    what = {"session": options.session} if options.backend is None else {"backend": options.backend}
    body = {
        **what,
        "reason": options.reason,
        "payloads": options.payloads,
        "minutes": options.minutes,
    }
    with open_rest(options) as rest:
        above = f"/tenants/{segment(options.tenant)}/inspections"
        about = rest.ask("POST", above, body)
        path = f"{above}/{segment(str(about.get('id')))}"
        until = one_line(about.get("ends_at"))
        print(f"trunkline: inspection {printable(str(about.get('id')))} is open until {until}", file=sys.stderr)
        if not (options.follow or options.jsonl):
            if options.json:
                print_json(about)
            return 0
        try:
            return _show(rest, path, options, is_followed=True, pause=pause)
        except KeyboardInterrupt:
            rest.ask("DELETE", path)
            print("trunkline: closed", file=sys.stderr)
            raise


def show_messages(options: argparse.Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """`trunkline inspections messages`. Raises GatewayError."""
    path = f"/tenants/{segment(options.tenant)}/inspections/{segment(options.id)}"
    with open_rest(options) as rest:
        return _show(rest, path, options, is_followed=options.follow, pause=pause)


def _show(
    rest: Rest, path: str, options: argparse.Namespace, *, is_followed: bool, pause: Callable[[float], None]
) -> int:
    if options.jsonl:
        return _save(rest, path, Path(options.jsonl), is_followed=is_followed, pause=pause)
    if is_followed:
        for row in _messages(rest, path, is_followed=True, pause=pause):
            print(json.dumps(row) if options.json else _line(row), flush=True)
        return 0
    rows = list(_messages(rest, path, is_followed=False, pause=pause))
    if options.json:
        print_json(rows)
    elif rows:
        print_table(rows, FIRST)
    else:
        print("nothing has passed", file=sys.stderr)
    return 0


def _save(rest: Rest, path: str, file: Path, *, is_followed: bool, pause: Callable[[float], None]) -> int:
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as lines:
            for row in _messages(rest, path, is_followed=is_followed, pause=pause):
                lines.write(json.dumps(row) + "\n")
                lines.flush()
    except OSError as error:
        raise InvalidRequest(f"--jsonl: {error.strerror}: {file}") from None
    return 0


def _private(name: str, flags: int) -> int:
    """Payloads are nobody else's business."""
    return os.open(name, flags, 0o600)


def _messages(rest: Rest, path: str, *, is_followed: bool, pause: Callable[[float], None]) -> Iterator[dict[str, Any]]:
    """The messages that are kept; followed, also those to come, until the inspection has ended."""
    after, told = 0, set[str]()
    while True:
        page = rest.ask("GET", f"{path}/messages", query={"after": str(after), "limit": str(PAGE)})
        rows, about = page.get("items"), page.get("inspection")
        if not isinstance(rows, list) or not isinstance(about, dict):
            raise GatewayError("the gateway's answer is not a list of messages")
        yield from rows
        after = int(page.get("next_after", after))
        _tell_silent(page.get("silent_nodes"), told)
        if rows:
            continue
        if not is_followed or about.get("ended_at") is not None:
            _tell_end(about)
            return
        pause(FOLLOW_S)


def _tell_silent(silent: object, told: set[str]) -> None:
    """Each node once."""
    for node in silent if isinstance(silent, list) else []:
        if node not in told:
            told.add(node)
            print(f"trunkline: what passes {one_line(node)} is missing: it did not answer", file=sys.stderr)


def _tell_end(about: Mapping[str, Any]) -> None:
    if about.get("dropped"):
        print(f"trunkline: {one_line(about['dropped'])} messages were dropped", file=sys.stderr)
    if about.get("missed"):
        print(f"trunkline: {one_line(about['missed'])} sessions were not seen: too many at a time", file=sys.stderr)
    if about.get("ending") is not None:
        print(f"trunkline: the inspection has ended: {one_line(about['ending'])}", file=sys.stderr)


def _line(row: Mapping[str, Any]) -> str:
    arrow = "->" if row.get("direction") == "to_server" else "<-"
    took = "" if row.get("took_ms") is None else f"{one_line(row['took_ms'])} ms"
    words = (
        row.get("number"), str(row.get("at"))[11:23], row.get("session") or "", row.get("side"),
        arrow, row.get("kind"), row.get("method"),
        row.get("tool") or "", row.get("member") or "", took, f"{one_line(row.get('size'))} B",
        row.get("payload") or "",
    )  # fmt: skip
    return "  ".join(printable(str(word)) for word in words if word != "")
