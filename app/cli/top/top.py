"""The command `top`: memory, CPU and calls over REST, live in a terminal or once for scripts."""

import argparse
import json
import os
import shutil
import sys
import time
from datetime import UTC, datetime

from app.cli.rest import Refused, Rest, open_rest
from app.cli.top.frame import Query, Snapshot, frame
from app.cli.top.screen import Screen, ScreenFailed
from app.cli.usage.options import MAX_ROWS
from app.errors import GatewayError, InvalidRequest
from app.text.terminal.text import cut

ONCE_ROWS = 20
MEASURE_S, MEASURED_WITHIN = 0.5, 6  # a node measures within two seconds of the first request; --once waits for it
_DUMB = ("", "dumb", "unknown")
_FORBIDDEN, _NOT_FOUND = 403, 404


def show_top(options: argparse.Namespace) -> int:
    """`trunkline top`: asks once before it draws, so that errors are printed without a screen."""
    query = Query(tenant=options.tenant).but(view=options.view, sort=options.sort)
    if query.view == "tenants" and query.tenant:
        raise InvalidRequest("--view tenants shows all tenants: leave --tenant out")
    with open_rest(options) as rest:
        gateway = Gateway(rest)
        first = gateway.snapshot(query, options.rows or ONCE_ROWS)
        for _ in range(MEASURED_WITHIN if options.once else 0):
            if first.is_measured:
                break
            time.sleep(MEASURE_S)
            first = gateway.snapshot(query, options.rows or ONCE_ROWS)
        if options.once or options.json or not _is_screen():
            return _print_snapshots(gateway, first, options)
        try:
            return Screen(gateway.snapshot, first, options.interval, options.rows).run()
        except ScreenFailed:
            return _print_snapshots(gateway, first, options)


class Gateway:
    """Asks a gateway. Remembers if its key may not read the nodes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._sees_nodes = True

    def snapshot(self, query: Query, rows: int) -> Snapshot:
        """The present state.

        Raises:
            GatewayError: the gateway does not answer, or refuses.
        """
        nodes = self._nodes()
        try:
            page = self._rest.ask("GET", query.path, query={"sort": query.sort, "limit": str(min(rows, MAX_ROWS))})
        except Refused as refused:
            if refused.status in (_FORBIDDEN, _NOT_FOUND) and query.tenant is None:
                what = "this key may not read all tenants"
                raise GatewayError(what, hint="give --tenant NAME, or a key with platform:admin") from None
            raise
        items, silent = page.get("items", []), page.get("silent_nodes", [])
        try:
            snapshot = Snapshot(datetime.now(UTC), query, items, int(page.get("total", len(items))), silent, nodes)
            _ = snapshot.is_measured, frame(snapshot)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            what = f"cannot show the gateway's answer: {type(error).__name__}"
            raise GatewayError(what, hint="is it a gateway of this version?") from None
        return snapshot

    def _nodes(self) -> list[dict[str, object]] | None:
        if not self._sees_nodes:
            return None
        try:
            return self._rest.items("/nodes", query={}, most=MAX_ROWS)[0]
        except Refused as refused:
            if refused.status != _FORBIDDEN:
                raise
            self._sees_nodes = False
            return None


def _is_screen() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in _DUMB


def _print_snapshots(gateway: Gateway, snapshot: Snapshot, options: argparse.Namespace) -> int:
    """Prints one update below the other; with `--once` only the first."""
    while True:
        _print(snapshot, as_json=options.json)
        if options.once:
            return 0
        time.sleep(options.interval)
        try:
            snapshot = gateway.snapshot(snapshot.query, options.rows or ONCE_ROWS)
        except GatewayError as error:
            print(f"trunkline: {error}", file=sys.stderr)


def _print(snapshot: Snapshot, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(snapshot.as_json()), flush=True)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(line if width is None else cut(line, width) for line in frame(snapshot)), end="\n\n", flush=True)
