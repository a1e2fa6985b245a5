"""The command `problems`: what is wrong now, over REST."""

import argparse
import json
import sys
from typing import Any

from app.cli.rest import open_rest, segment
from app.cli.tables import one_line
from app.errors import GatewayError
from app.text.terminal.text import printable

SOME = 1  # the exit code


def show_problems(options: argparse.Namespace) -> int:
    """Prints each with what to do; the exit code is 1 if there is one.

    Raises:
        GatewayError: the gateway does not answer, or refuses.
    """
    path = "/problems" if options.tenant is None else f"/tenants/{segment(options.tenant)}/problems"
    with open_rest(options) as rest:
        page = rest.ask("GET", path)
    items, silent = page.get("items"), page.get("silent_nodes")
    if not (isinstance(items, list) and all(isinstance(each, dict) for each in items)):
        raise GatewayError("the gateway's answer has no list of problems", hint="is it a gateway of this version?")
    if options.json:
        print(json.dumps(items, indent=2))
    else:
        for each in items:
            _print(each)
    if silent:
        print(f"trunkline: silent_nodes: {one_line(silent)}", file=sys.stderr)
    if not items:
        print("trunkline: nothing is wrong, as far as it is known", file=sys.stderr)
    return SOME if items else 0


def _print(problem: dict[str, Any]) -> None:
    tenant, since, nodes = problem.get("tenant"), problem.get("since"), problem.get("nodes")
    where = [f"tenant {tenant}"] if tenant else []
    where += [f"since {since}"] if since else []
    where += [f"on {', '.join(map(str, nodes))}"] if isinstance(nodes, list) and nodes else []
    print(printable(f"{problem.get('severity')}: {problem.get('words')}"))
    print(printable(f"  {problem.get('kind')}{''.join(', ' + each for each in where)}"))
    print(printable(f"  Do: {problem.get('do')}"))
