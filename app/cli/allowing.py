"""`backends check`: what a backend offers and what its sandbox kept from it; with `--allow` that is added, by the same
PATCH as `set` sends, and the backend is checked again."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from app.cli.resources import body_of, checked, of_tenant, path_of, print_json, print_object
from app.cli.rest import Rest, open_rest
from app.text.terminal.progress import Progress

MOST_ROUNDS = 5  # of adding something and checking again
_WHO = {"platform:admin": "a platform administrator", "tenant:admin": "an administrator of the tenant"}


def check_backend(options: argparse.Namespace) -> int:
    """Prints the findings; with --allow those of the last check, and on stderr what each round missed and added. Exit
    code 1 if it does not work in the end."""
    path, body = path_of(options, options.id), body_of(options) or None
    rounds = list[dict[str, Any]]()
    with open_rest(options) as rest, Progress() as progress:
        found = checked(rest, options, body, progress)
        while options.allow and found.get("missed") and len(rounds) <= MOST_ROUNDS:
            patch = found.get("patch") if len(rounds) < MOST_ROUNDS else None
            rounds.append({"ok": found["ok"], "missed": found["missed"], "added": patch})
            for line in _told(len(rounds), found, patch, options):
                progress.say(line)
            if not patch:
                break
            _add(rest, path, found, patch)
            found = checked(rest, options, body, progress)
        if not options.allow and found.get("patch"):
            progress.say(f"next: trunkline backends check {options.id}{of_tenant(options)} --allow")
    if options.json:
        print_json(found | ({"rounds": rounds} if options.allow else {}))
    else:
        print_object(options, {name: value for name, value in found.items() if name not in ("patch", "tag")})
    return 0 if found.get("ok", True) else 1


def _add(rest: Rest, path: str, found: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
    """To the registration that was checked, and to no other: lists are replaced. Raises like `Rest.ask`."""
    rest.ask("PATCH", path, patch, headers={"If-Match": str(found["tag"])})


def _told(
    number: int, found: Mapping[str, Any], patch: Mapping[str, Any] | None, options: argparse.Namespace
) -> list[str]:
    lines = [f"round {number}: it {'works' if found['ok'] else 'does not work'}, and missed"]
    lines += [f"  {_what(each)}: {_fate(each, options, is_added=patch is not None)}" for each in found["missed"]]
    if patch is not None:
        lines.append(f"  added {json.dumps(patch)}, and checked again")
    elif number > MOST_ROUNDS:
        lines.append(f"  nothing more is added after {MOST_ROUNDS} rounds")
    return lines


def _what(missed: Mapping[str, Any]) -> str:
    access = f" ({missed['access']})" if missed["access"] else ""
    return f"{missed['kind']} {missed['what']}{access}"


def _fate(missed: Mapping[str, Any], options: argparse.Namespace, *, is_added: bool) -> str:
    """What becomes of it."""
    proposal, note = missed["proposal"], missed["note"] or ""
    if missed["uid"] is not None:
        return f"owner and mode keep it from the user {missed['uid']}; use chown or setfacl on the node"
    if proposal is None:
        return note or "no entry allows it"
    if not missed["may_grant"]:
        return f"{_WHO.get(missed['granted_by'], missed['granted_by'])} may add {json.dumps(proposal)}"
    if proposal == {"network": "host"}:
        return f"not added. {note} To add it all the same: trunkline backends set {options.id} sandbox.network=host"
    return "added" if is_added else f"not added: {json.dumps(proposal)}"
