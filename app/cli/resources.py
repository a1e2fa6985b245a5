"""The verbs of `tenants`, `backends`, `keys`, `issuers`, `sessions` and the lists, over REST.

The same code serves every resource: a resource is a path, a verb is a method. The gateway's answer is shown as it is,
so new members need no change here. Results go to stdout, everything else to stderr.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from app.cli.members import members_of, secrets_given_openly
from app.cli.rest import Rest, open_rest, segment
from app.cli.tables import one_line, record, table
from app.cli.usage.nouns import ALL, BACKENDS, Resource
from app.errors import GatewayError, InvalidRequest
from app.text.terminal.progress import Progress
from app.text.terminal.stdout import show_once
from app.text.terminal.text import printable

# --- the verbs


def list_objects(options: argparse.Namespace, action: str = "", **named: str) -> int:
    """`list`: a table that fits the terminal, or JSON; or what an action answers instead, with its own columns.
    `named`: filters with options of their own."""
    resource: Resource = options.resource
    query = query_of(options) | named
    path = path_of(options, action=action)
    with open_rest(options) as rest:
        if action:  # answers all at once
            page = rest.ask("GET", path, query=query)
            found = page.pop("items")
            rows = found[: options.limit]
            page |= {"total": len(found), "next_cursor": len(rows) < len(found)}
        else:
            rows, page = rest.items(path, query=query, most=options.limit)
    if options.json:
        print_json(rows)
    elif rows:
        of_one = resource.of_tenant and options.tenant != ALL
        print_table(rows, () if action else resource.first, of_tenant=of_one)
    else:
        print(f"there are no {resource.name if resource.name.endswith('s') else 'entries'}", file=sys.stderr)
    tell_of_page(rows, page)
    return 0


def show_object(options: argparse.Namespace) -> int:
    """`show`: every member of one object."""
    return print_object(options, ask(options, "GET", path_of(options, options.id)))


def show_listed(options: argparse.Namespace) -> int:
    """`show` of a session, which the REST API can only list."""
    with open_rest(options) as rest:
        rows, page = rest.items(path_of(options), query={}, most=options.limit)
    for row in rows:
        if row.get(options.resource.id) == options.id:
            return print_object(options, row)
    where = f" among the first {len(rows)}" if page.get("next_cursor") else ""
    raise GatewayError(f"there is no session {ascii(options.id)[1:-1]}{where}")


def create_object(options: argparse.Namespace) -> int:
    """`create`: says in one line what was made, and on stderr what to do next; with --json prints all of it."""
    body = body_of(options)
    named = body.setdefault(options.resource.made_by, options.id)
    if named != options.id:
        raise InvalidRequest(f"the command says {options.id!a}, and name=value or the file {named!a}: which is it?")
    if options.command_line:
        body |= {"command": options.command_line[0], "args": options.command_line[1:]}
    with open_rest(options) as rest, Progress() as progress:
        if options.resource is BACKENDS and (package := _package_in(body)):
            progress.begin(f"installing {package}")
        made = rest.ask("POST", path_of(options), body)
    if options.json:
        print_json(made)
    else:
        _tell_made(options, made, is_asked_for=made.get("off_by_platform", False) and body.get("enabled", True))
    return 0


def _package_in(body: Mapping[str, Any]) -> str:
    """The package that the command of a new backend names, with the version that it asks for; empty: none, as far as
    can be told here."""
    from app.backends.packages.recognition import NotInstallable, recognised  # noqa: PLC0415 - of one command

    command, args = body.get("command"), body.get("args") or []
    if not isinstance(command, str) or not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        return ""
    try:
        request = recognised(command, args)
    except NotInstallable:
        return ""
    return "" if request is None else request.wanted[0]


def _tell_made(options: argparse.Namespace, made: Mapping[str, Any], *, is_asked_for: bool = False) -> None:
    """`is_asked_for`: the platform has to grant it first."""
    resource: Resource = options.resource
    name = printable(str(made.get(resource.id, options.id)))
    tenant = options.tenant if resource.of_tenant else ""
    where = f" of tenant {tenant}" if tenant else ""
    print(f"{'asked for' if is_asked_for else 'created'} {resource.name.removesuffix('s')} {name}{where}", flush=True)
    if secret := made.get("secret"):
        print(f"its secret, which is shown once: {printable(str(secret))}")
    for member in ("warnings", "problems"):  # what does not keep it from being made
        if made.get(member):
            print(f"trunkline: {member}: {one_line(made[member])}", file=sys.stderr)
    if notes := made.get("notes"):  # perhaps a hundred, which `check` and `show` have
        print(f"trunkline: notes ({len(notes)}): {one_line(notes[0])}", file=sys.stderr)
    next_step = made["reason"] if is_asked_for else resource.next.format(name=name, tenant=tenant)
    print(f"next: {next_step}", file=sys.stderr)


def of_tenant(options: argparse.Namespace) -> str:
    """Which tenant, for a command that is to be repeated."""
    return "" if options.tenant == "default" else f" --tenant {options.tenant}"


def change_object(options: argparse.Namespace) -> int:
    """`set`: sends a merge patch, and prints the changed object."""
    body, path = body_of(options), path_of(options, options.id)
    if not body:
        raise InvalidRequest("set what? Give name=value, or --unset name")
    with open_rest(options) as rest:
        kept = [name for name in options.resource.fixed if name in body]
        now = rest.ask("GET", path) if kept else {}
        for name in kept:  # as in the file that the object was made from
            if body[name] == now.get(name):
                del body[name]
        return print_object(options, rest.ask("PATCH", path, body))


def change_principal(options: argparse.Namespace) -> int:
    """`principals set`: issuer and subject are in the body, not in the path."""
    body = {**body_of(options), "issuer": options.issuer, "subject": options.subject}
    return print_object(options, ask(options, "PATCH", path_of(options), body))


def delete_object(options: argparse.Namespace) -> int:
    """`delete`, `close` and `revoke`."""
    ask(options, "DELETE", path_of(options, options.id))
    print(f"{options.done} {options.id}", file=sys.stderr)
    return 0


def check_object(options: argparse.Namespace) -> int:
    """`check`: prints the findings; exit code 1 if it does not work."""
    body = body_of(options) or None
    with open_rest(options) as rest, Progress() as progress:
        found = checked(rest, options, body, progress)
    print_object(options, found)
    return 0 if found.get("ok", True) else 1


def checked(rest: Rest, options: argparse.Namespace, body: object, progress: Progress) -> dict[str, Any]:
    """The findings of one check."""
    path = path_of(options, options.id, action="check")
    doing = f"checking {options.resource.name.removesuffix('s')} {options.id}"
    progress.begin(doing)
    if progress.is_possible and options.resource is BACKENDS:
        return rest.follow(path, body, lambda step: progress.begin(f"{doing}, {_step_words(step)}"))
    return rest.ask("POST", path, body)


def _step_words(step: Mapping[str, Any]) -> str:
    return f"{step.get('number')} of {step.get('of')}: {step.get('step')}"


def restart_object(options: argparse.Namespace) -> int:
    """`restart`."""
    ask(options, "POST", path_of(options, options.id, action="restart"))
    print(f"restarted {options.id}; clients can open new sessions", file=sys.stderr)
    return 0


def restart_process(options: argparse.Namespace) -> int:
    """`processes restart`: says what becomes of its sessions."""
    found = ask(options, "POST", path_of(options, options.id, action="restart"))
    if options.json:
        print_json(found)
    words = f"{found['sessions_ended']} sessions end, {found['sessions_going_on']} go on with another process"
    print(f"restarted {options.id} of {found['backend']}: {words}", file=sys.stderr)
    return 0


# --- keys: the first one is created before anybody could use REST


def create_key(options: argparse.Namespace) -> int:
    """`keys create`: stdout has only the key."""
    body = {"name": options.name, "scopes": sorted(set(options.scope))}
    if options.expires_days is not None:
        body["expires_at"] = _moment(datetime.now(UTC) + timedelta(days=options.expires_days))
    made = ask(options, "POST", path_of(options), body)
    _show_key(options, made)
    return _note_of_key(options, f"This key of tenant {options.tenant} is shown once. {_facts_of(made)}.")


def rotate_key(options: argparse.Namespace) -> int:
    """`keys rotate`: creates a key with the same name, scopes and life. Without --revoke the old key keeps working, so
    that there is time to replace it."""
    with open_rest(options) as rest:
        old = rest.ask("GET", path_of(options, options.id))
        made = rest.ask("POST", path_of(options), _successor(old))
        _show_key(options, made)
        if options.revoke:
            rest.ask("DELETE", path_of(options, options.id))
    is_revoked = options.revoke or old.get("revoked_at")
    then = "is revoked." if is_revoked else "still works: once it is not used any more (last_used_at), revoke it."
    return _note_of_key(options, f"This key is shown once. {_facts_of(made)}. {options.id} {then}")


def _facts_of(made: Mapping[str, Any]) -> str:
    expires_at = made.get("expires_at")
    life = f"expires on {str(expires_at)[:10]}" if expires_at else "does not expire"
    return f"Its id is {made.get('id')}; it {life}"


def _successor(old: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the request that creates a key like this one."""
    try:
        body = {"name": old["name"], "scopes": old["scopes"], "expires_at": None}
        if old.get("expires_at"):
            life = datetime.fromisoformat(old["expires_at"]) - datetime.fromisoformat(old["created_at"])
            body["expires_at"] = _moment(datetime.now(UTC) + life)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise GatewayError("the gateway's answer is not a key") from None
    return body


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _show_key(options: argparse.Namespace, made: Mapping[str, Any]) -> None:
    text, name = json.dumps(made, indent=2) if options.json else str(made.get("key", "")), one_line(made.get("id"))
    undo = f"trunkline keys revoke {name} --tenant {options.tenant}"
    show_once(text if options.json else printable(text), f"the key {name}", undo)


def _note_of_key(options: argparse.Namespace, note: str) -> int:
    if not options.json:
        print(f"{printable(note)} Send it as: Authorization: Bearer <key>", file=sys.stderr)
    return 0


def only_there(options: argparse.Namespace) -> int:
    """Refuses a command that needs a gateway."""
    raise InvalidRequest(
        f"`keys {options.verb}` needs a gateway: set TRUNKLINE_URL and TRUNKLINE_KEY, or give --url and --key-file. "
        "Only `keys create`, `keys list` and `keys revoke` work on the database of this machine"
    )


# --- requests and output


def ask(options: argparse.Namespace, method: str, path: str, body: object = None) -> dict[str, Any]:
    with open_rest(options) as rest:
        return rest.ask(method, path, body)


def path_of(options: argparse.Namespace, identifier: str | None = None, *, action: str = "") -> str:
    resource: Resource = options.resource
    above = f"/tenants/{segment(options.tenant)}" if resource.of_tenant and options.tenant else ""
    below = "" if identifier is None else f"/{segment(identifier)}"
    return f"{above}/{resource.name}{below}" + (f":{action}" if action else "")


def body_of(options: argparse.Namespace) -> dict[str, Any]:
    for name in secrets_given_openly(options.members):
        print(
            f"trunkline: the value of {name} is in the list of processes and in the shell's history: use "
            f"{name}=@FILE instead, or {name}=@- for stdin",
            file=sys.stderr,
        )
    return members_of(options.members, unset=options.unset, file=options.file)


def query_of(options: argparse.Namespace) -> dict[str, str]:
    """The filters NAME=VALUE."""
    found = members_of(options.members)
    if any(isinstance(value, dict) for value in found.values()):
        raise InvalidRequest("a filter is name=value, without dots")
    if {"limit", "cursor"} & found.keys():
        raise InvalidRequest("how many rows: --limit NUMBER; pages are followed until there are so many")
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_object(options: argparse.Namespace, found: Mapping[str, Any]) -> int:
    if options.json:
        print_json(found)
    else:
        print(record(found, width=terminal_width()))
    return 0


def tell_of_page(rows: Sequence[object], page: dict[str, Any]) -> None:
    """Says on stderr that there are more, and what else the answer has, such as nodes that did not answer."""
    more, total = page.pop("next_cursor", None), page.pop("total", None)
    if more:
        of_all = "" if total is None else f" of {total}"
        print(f"trunkline: these are the first {len(rows)}{of_all}; use --limit for more", file=sys.stderr)
    for name, value in page.items():
        if value:
            print(f"trunkline: {printable(name)}: {one_line(value)}", file=sys.stderr)


def print_table(rows: list[dict[str, Any]], first: tuple[str, ...], *, of_tenant: bool = True) -> None:
    """Prints a list; with `of_tenant` without the column of the tenant, which is the same in each row."""
    if of_tenant and len({row.get("tenant") for row in rows}) == 1:
        rows = [{name: value for name, value in row.items() if name != "tenant"} for row in rows]
    text, left_out = table(rows, first=first, width=terminal_width())
    print(text)
    if left_out:
        print(f"trunkline: no room for {', '.join(left_out)}; use `show` or --json to see all", file=sys.stderr)


def terminal_width() -> int | None:
    """The terminal's width; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
