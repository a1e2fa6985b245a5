"""`trunkline catalog`: find tools, see what has changed in them, approve and reject them."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from app.cli.resources import ask, body_of, print_json, print_table
from app.cli.rest import open_rest, segment
from app.errors import GatewayError
from app.text.terminal.text import printable

_RED, _GREEN, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"
_SIGNS = {"same": ("  ", ""), "removed": ("- ", _RED), "added": ("+ ", _GREEN)}


def list_tools(options: argparse.Namespace) -> int:
    """`catalog tools`: what was found of each tool, and what has changed."""
    rows = _tools(options)
    if options.json:
        print_json(rows)
    elif rows:
        print_table(rows, ("tool", "status", "reasons", "withheld", "by", "at"), of_tenant=False)
    return 0


def show_differences(options: argparse.Namespace) -> int:
    """`catalog diff`: each tool that is not as it was approved, with what was and what is. Exit code 1 if a tool that
    was asked for is not there."""
    rows = _tools(options)
    wanted = set(options.tools)
    if missing := wanted - {str(row.get("tool")) for row in rows}:
        raise GatewayError(f"{options.id} has no tool {ascii(min(missing))[1:-1]}")
    shown = [row for row in rows if row.get("difference") and (not wanted or row.get("tool") in wanted)]
    if options.json:
        print_json(shown)
        return 0
    for row in shown:
        print("\n".join(difference_lines(row, is_coloured=sys.stdout.isatty())))
    if rows and not shown:
        print("nothing has changed since it was approved, or nothing was approved", file=sys.stderr)
    return 0


def search_tools(options: argparse.Namespace) -> int:
    """`catalog search`: best first."""
    query = {"query": " ".join(options.query), "limit": str(options.limit)}
    if options.toolset is not None:
        query["toolset"] = options.toolset
    with open_rest(options) as rest:
        rows, _ = rest.items(f"/tenants/{segment(options.tenant)}/catalog:search", query=query, most=options.limit)
    if options.json:
        print_json(rows)
    elif rows:
        shown = [{**row, "description": _first_line(row.get("description"))} for row in rows]
        print_table(shown, ("shown_as", "kind", "backend", "tool", "description", "title"), of_tenant=False)
    else:
        print("no tool was found: describe in other words what you want to do", file=sys.stderr)
    return 0


def explain_access(options: argparse.Namespace) -> int:
    """`access explain`: exit code 1 if the tool may be called nowhere."""
    query = [("as", options.who), ("tool", options.id), *(("group", each) for each in options.groups)]
    query += [(name, value) for name in ("issuer", "at") if (value := getattr(options, name)) is not None]
    found = ask(options, "GET", f"/tenants/{segment(options.tenant)}/access:explain?{urlencode(query)}")
    rows = found["items"]
    if options.json:
        print_json(found)
    elif rows:
        groups = ", ".join(map(printable, found["groups"]))
        print(f"{printable(found['who'])}{f', in {groups}' if groups else ''}:", file=sys.stderr)
        print_table(rows, ("place", "allowed", "why", "limits"), of_tenant=False)
    else:
        print(f"no backend or toolset has a tool {printable(options.id)}", file=sys.stderr)
    return 0 if any(each["allowed"] for each in rows) else 1


def decide_tools(options: argparse.Namespace) -> int:
    """`catalog approve` and `catalog reject`."""
    body = body_of(options)
    ask(options, "POST", f"{_tools_path(options)}:{options.verb}", body)
    which = "the tools that wait" if body.get("tools") is None else ", ".join(map(str, body["tools"]))
    print(f"{options.done}, as {options.id} offers them now: {printable(which)}", file=sys.stderr)
    return 0


def _tools(options: argparse.Namespace) -> list[dict[str, Any]]:
    with open_rest(options) as rest:
        rows, _ = rest.items(_tools_path(options), query={}, most=options.limit)
    if not rows:
        print("it is not known which tools this backend offers: check it first", file=sys.stderr)
    return rows


def _tools_path(options: argparse.Namespace) -> str:
    return f"/tenants/{segment(options.tenant)}/backends/{segment(options.id)}/tools"


def _first_line(text: object) -> str:
    return next(iter(str(text or "").strip().splitlines()), "")


# --- differences as lines


def difference_lines(row: Mapping[str, Any], *, is_coloured: bool) -> Iterable[str]:
    """Of one row of the tools of a backend."""
    reasons = ", ".join(map(str, row.get("reasons") or ()))
    yield printable(f"{row.get('tool')}: {row.get('status')}" + (f" ({reasons})" if reasons else ""))
    for each in row["difference"]:
        yield f"  {printable(str(each.get('path')))}"
        for kind, text in _pieces(each):
            sign, colour = _SIGNS.get(kind, _SIGNS["same"])
            for line in text.splitlines() or [""]:
                words = f"    {sign}{printable(line)}"
                yield f"{colour}{words}{_PLAIN}" if is_coloured and colour else words


def _pieces(difference: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    hunks = difference.get("hunks")
    if hunks:
        return [(str(each.get("kind")), str(each.get("text"))) for each in hunks]
    values = (("removed", difference.get("before")), ("added", difference.get("after")))
    return [(kind, str(value)) for kind, value in values if value is not None]
