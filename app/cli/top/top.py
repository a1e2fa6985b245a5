"""The command `top`: who takes how much of the machine, over REST, live in a terminal or once for scripts."""

import argparse
import json
import os
import shutil
import sys
import time
from datetime import UTC, datetime

from app.cli.rest import Refused, Rest, address_of
from app.cli.top.frame import Look, Wanted, cut, frame
from app.cli.top.screen import Screen, ScreenFailed
from app.errors import GatewayError, InvalidRequest

ONCE_ROWS = 20
MEASURE_S, MEASURED_WITHIN = 0.5, 6  # a node measures within two seconds of being asked; one look waits for it
MAX_ROWS = 200  # of a page over REST
VIEWS = ("processes", "sessions", "tenants")
SORTS = ("memory", "cpu", "calls", "age")
_DUMB = ("", "dumb", "unknown")
_FORBIDDEN, _NOT_FOUND = 403, 404


def show_top(options: argparse.Namespace) -> int:
    """`trunkline top`."""
    wanted = Wanted(tenant=options.tenant).but(view=options.view, sort=options.sort)
    if wanted.view == "tenants" and wanted.tenant:
        raise InvalidRequest("--view tenants is of all tenants: leave --tenant out")
    with Rest(address_of(options)) as rest:
        eyes = Eyes(rest)
        first = eyes.look(wanted, options.rows or ONCE_ROWS)  # what is wrong is said before there is a screen
        for _ in range(MEASURED_WITHIN if options.once else 0):
            if first.is_measured:
                break
            time.sleep(MEASURE_S)
            first = eyes.look(wanted, options.rows or ONCE_ROWS)
        if options.once or options.json or not _is_screen():
            return _print_looks(eyes, first, options)
        try:
            return Screen(eyes.look, first, options.interval, options.rows).run()
        except ScreenFailed:
            return _print_looks(eyes, first, options)


class Eyes:
    """Looks at a gateway. Knows whether its key may see the nodes: it is asked once."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._sees_nodes = True

    def look(self, wanted: Wanted, rows: int) -> Look:
        """What is there now.

        Raises:
            GatewayError: the gateway does not answer, or refuses.
        """
        nodes = self._nodes()
        try:
            page = self._rest.ask("GET", wanted.path, query={"sort": wanted.sort, "limit": str(min(rows, MAX_ROWS))})
        except Refused as refused:
            if refused.status in (_FORBIDDEN, _NOT_FOUND) and wanted.tenant is None:
                what = "this key may not look at all tenants"
                raise GatewayError(what, hint="give --tenant NAME, or a key with platform:admin") from None
            raise
        items, silent = page.get("items", []), page.get("silent_nodes", [])
        try:
            look = Look(datetime.now(UTC), wanted, items, int(page.get("total", len(items))), silent, nodes)
            _ = look.is_measured, frame(look)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            what = f"the gateway answers what cannot be shown: {type(error).__name__}"
            raise GatewayError(what, hint="is it a gateway, and of this version?") from None
        return look

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


def _print_looks(eyes: Eyes, look: Look, options: argparse.Namespace) -> int:
    """One after the other, below each other; only the first with `--once`."""
    while True:
        _print(look, as_json=options.json)
        if options.once:
            return 0
        time.sleep(options.interval)
        try:
            look = eyes.look(look.wanted, options.rows or ONCE_ROWS)
        except GatewayError as error:
            print(f"trunkline: {error}", file=sys.stderr)


def _print(look: Look, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(look.as_json()), flush=True)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(line if width is None else cut(line, width) for line in frame(look)), end="\n\n", flush=True)
