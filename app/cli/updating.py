"""`backends update` and `backends outdated`: other versions of the packages that backends are started from."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from app.cli.resources import path_of, print_json, print_table
from app.cli.rest import open_rest
from app.text.terminal.progress import Progress
from app.text.terminal.text import printable

_FIRST = ("backend", "package", "version", "newest", "problem", "registry")


def update_backend(options: argparse.Namespace) -> int:
    """`update`: says what another version changes, and has new sessions get it; exit code 1 if it does not work."""
    body = {"to": options.to, "apply": not options.dry_run}
    with open_rest(options) as rest, Progress() as progress:
        doing = f"updating backend {options.id}"
        progress.begin(doing)
        path = path_of(options, options.id, action="update")
        found = rest.follow(path, body, lambda step: progress.begin(f"{doing}: {step.get('step')}"))
    if options.json:
        print_json(found)
    else:
        for line in _lines(found):
            print(printable(line))
        for line in _notes(options, found):
            print(f"trunkline: {printable(line)}", file=sys.stderr)
    return 1 if found.get("failure") else 0


def list_outdated(options: argparse.Namespace) -> int:
    """`outdated`: one line for each backend whose package has a newer version, or whose registry does not answer."""
    with open_rest(options) as rest, Progress() as progress:
        progress.begin("asking the registries")
        rows = rest.ask("GET", path_of(options, action="outdated")).get("items", [])
    if options.json:
        print_json(rows)
    elif rows:
        print_table(rows, _FIRST, of_tenant=False)
    else:
        print("no backend has a package of which there is a newer version", file=sys.stderr)
    return 0


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    before, after = found.get("before") or {}, found["after"]
    yield f"{after['name']}: {before.get('version', 'not installed')} -> {after['version']}"
    if not _is_another(found):
        return
    if before.get("version") == after["version"]:
        of_package = "the same version, with other versions of what it needs"
        yield f"  {'another image of that name' if after['registry'] == 'oci' else of_package}"
    if scripts := set(after["scripts"]) - set(before.get("scripts", ())):
        yield f"  scripts of its installation, which were not run: {', '.join(sorted(scripts))}"
    tools = found.get("tools") or {}
    for kind in ("added", "removed", "changed"):
        yield from (f"  tool {kind}: {name}" for name in tools.get(kind, ()))
    if tools and not any(tools.values()):
        yield "  its tools are the same"
    yield from (f"  withheld until somebody approves it: {name}" for name in found["withheld"])


def _notes(options: argparse.Namespace, found: Mapping[str, Any]) -> Iterator[str]:
    failure = found.get("failure")
    if not _is_another(found):
        yield "nothing to change: it is what its command allows; --to VERSION names another one"
    elif failure:
        yield f"nothing is changed, as the new version does not work: {failure['detail']}"
        yield from failure["stderr"]
        yield from [failure["hint"]] if failure["hint"] else []
    elif found["applied"]:
        yield f"updated {options.id}: sessions that begin from now on get it, open ones keep what they have"
    else:
        yield "nothing is changed: this was a dry run"
    if _is_another(found) and not failure and found.get("tools") is None:
        yield "which tools are other ones is not known, as nobody could ask the version that is there"


def _is_another(found: Mapping[str, Any]) -> bool:
    return bool(found["before"] != found["after"] or found["applied"])
