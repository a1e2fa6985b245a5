"""The commands `tenants`, `backends`, `keys`, `issuers`, `sessions` and the lists of what runs, over REST.

One way for all of them: a resource is a path, a verb a method. What the gateway answers is shown as it is, so that a
member that is new there needs nothing here. What a command makes or shows is on stdout, all else on stderr.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from app.cli.members import members_of, secrets_given_openly
from app.cli.rest import Rest, address_of, is_remote, segment
from app.cli.tables import one_line, record, table
from app.cli.text import printable
from app.errors import GatewayError, InvalidRequest

ALL = "-"  # in the place of a tenant: of all of them, where the REST API can


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object. `id` is the member that names it in a path, `made_by` the one that `create` is told first;
    `first` are the columns that matter most in a list."""

    name: str
    of_tenant: bool = True
    id: str = "id"
    made_by: str = "name"
    first: tuple[str, ...] = ()


TENANTS = Resource("tenants", of_tenant=False, id="name", first=("name", "enabled", "reason"))
BACKENDS = Resource(
    "backends", id="name", first=("name", "state", "enabled", "reason", "last_error", "command", "args")
)
KEYS = Resource("keys", first=("id", "name", "enabled", "reason", "scopes", "expires_at", "revoked_at", "last_used_at"))
PRINCIPALS = Resource("principals", first=("issuer", "subject", "enabled", "reason", "at"))
ISSUERS = Resource("issuers", made_by="issuer", first=("id", "issuer", "enabled", "algorithms", "max_scopes"))
SESSIONS = Resource(
    "sessions",
    first=(
        "id", "tenant", "backend", "subject", "client_name", "state", "idle_s", "calls", "resident_bytes",
        "cpu_percent", "opened_at", "node",
    ),
)  # fmt: skip
PROCESSES = Resource(
    "processes",
    first=("id", "tenant", "backend", "state", "resident_bytes", "cpu_percent", "age_s", "session_count", "node"),
)
FAILURES = Resource(
    "failures", first=("at", "tenant", "backend", "kind", "detail", "times", "before_handshake", "node")
)
USE = Resource("use", of_tenant=False, first=("tenant",))
NODES = Resource("nodes", of_tenant=False, first=("id", "url", "sessions", "processes", "draining", "problem"))
AUDIT = Resource("audit", first=("at", "tenant", "action", "target", "actor", "request_id"))


# --- the verbs


def list_objects(options: argparse.Namespace) -> int:
    """`list`: a table that fits the terminal, or JSON."""
    query = {name: _query_text(value) for name, value in members_of(options.members).items()}
    with Rest(address_of(options)) as rest:
        rows, page = rest.items(_path(options), query=query, most=options.limit)
    if options.json:
        _print_json(rows)
    elif rows:
        print_table(rows, options.resource.first, of_tenant=options.resource.of_tenant and options.tenant != ALL)
    else:
        print(f"there are no {options.resource.name}", file=sys.stderr)
    more, total = page.pop("next_cursor", None), page.pop("total", None)
    if more:
        of_all = "" if total is None else f" of {total}"
        print(f"trunkline: these are the first {len(rows)}{of_all}; --limit gives more", file=sys.stderr)
    for name, value in page.items():  # such as nodes that did not answer
        if value:
            print(f"trunkline: {printable(name)}: {one_line(value)}", file=sys.stderr)
    return 0


def show_object(options: argparse.Namespace) -> int:
    """`show`: every member of one."""
    with Rest(address_of(options)) as rest:
        found = rest.ask("GET", _path(options, options.id))
    return _print_object(options, found)


def show_listed(options: argparse.Namespace) -> int:
    """`show` of what REST only lists."""
    with Rest(address_of(options)) as rest:
        rows, _ = rest.items(_path(options), query={}, most=options.limit)
    for row in rows:
        if row.get(options.resource.id) == options.id:
            return _print_object(options, row)
    raise GatewayError(f"there is none of the id {ascii(options.id)[1:-1]} among the first {len(rows)} here")


def create_object(options: argparse.Namespace) -> int:
    """`create`: shows what was made."""
    body = _body(options)
    body.setdefault(options.resource.made_by, options.id)
    command = getattr(options, "command_line", None)
    if command:
        body |= {"command": command[0], "args": command[1:]}
    with Rest(address_of(options)) as rest:
        made = rest.ask("POST", _path(options), body)
    return _print_object(options, made)


def change_object(options: argparse.Namespace) -> int:
    """`set`: a merge patch, and what the object is afterwards."""
    body = _body(options)
    if not body:
        raise InvalidRequest("set what? Give name=value, or --unset name")
    with Rest(address_of(options)) as rest:
        changed = rest.ask("PATCH", _path(options, options.id), body)
    return _print_object(options, changed)


def change_principal(options: argparse.Namespace) -> int:
    """`principals set`: by issuer and subject, which stand in the body."""
    body = {**_body(options), "issuer": options.issuer, "subject": options.subject}
    with Rest(address_of(options)) as rest:
        changed = rest.ask("PATCH", _path(options), body)
    return _print_object(options, changed)


def delete_object(options: argparse.Namespace) -> int:
    """`delete` and `close`."""
    with Rest(address_of(options)) as rest:
        rest.ask("DELETE", _path(options, options.id))
    print(f"{options.done} {options.id}", file=sys.stderr)
    return 0


def check_object(options: argparse.Namespace) -> int:
    """`check`: what was found; exit code 1 if it does not work."""
    body = _body(options)
    with Rest(address_of(options)) as rest:
        found = rest.ask("POST", _path(options, options.id, action="check"), body or None)
    _print_object(options, found)
    return 0 if found.get("ok", True) else 1


def restart_object(options: argparse.Namespace) -> int:
    """`restart`."""
    with Rest(address_of(options)) as rest:
        rest.ask("POST", _path(options, options.id, action="restart"))
    print(f"restarted {options.id}; clients can begin new sessions", file=sys.stderr)
    return 0


# --- keys, which exist before there is anybody who could ask over REST


def here_or_there(
    here: Callable[[argparse.Namespace], int], there: Callable[[argparse.Namespace], int]
) -> Callable[[argparse.Namespace], int]:
    """A command for the database of this machine, or with --url or TRUNKLINE_URL for a gateway."""

    def run(options: argparse.Namespace) -> int:
        return there(options) if is_remote(options) else here(options)

    return run


def create_key(options: argparse.Namespace) -> int:
    """`keys create`: the key alone is on stdout."""
    body = {"name": options.name, "scopes": sorted(set(options.scope))}
    if options.expires_days is not None:
        body["expires_at"] = _moment(datetime.now(UTC) + timedelta(days=options.expires_days))
    with Rest(address_of(options)) as rest:
        made = rest.ask("POST", _path(options), body)
    return _print_key(options, made, f"This key of tenant {options.tenant} is shown once. Its id is {made.get('id')}.")


def rotate_key(options: argparse.Namespace) -> int:
    """`keys rotate`: another key with the same name and scopes, for as long. The old one goes on until it is revoked,
    so that whoever uses it has time."""
    with Rest(address_of(options)) as rest:
        old = rest.ask("GET", _path(options, options.id))
        made = rest.ask("POST", _path(options), _successor(old))
        if options.revoke:
            rest.ask("DELETE", _path(options, options.id))
    then = (
        f"{options.id} is revoked."
        if options.revoke
        else f"{options.id} still works: once nobody uses it any more (last_used_at), `trunkline keys revoke` it."
    )
    return _print_key(options, made, f"This key is shown once. Its id is {made.get('id')}. {then}")


def _successor(old: Mapping[str, Any]) -> dict[str, Any]:
    """The body that makes a key like this one."""
    try:
        body = {"name": old["name"], "scopes": old["scopes"], "expires_at": None}
        if old.get("expires_at"):
            life = datetime.fromisoformat(old["expires_at"]) - datetime.fromisoformat(old["created_at"])
            body["expires_at"] = _moment(datetime.now(UTC) + life)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise GatewayError("what the gateway answers is no key") from None
    return body


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _print_key(options: argparse.Namespace, made: Mapping[str, Any], told: str) -> int:
    if options.json:
        _print_json(made)
    else:
        print(printable(str(made.get("key", ""))))
        print(f"{printable(told)} Send it as: Authorization: Bearer <key>", file=sys.stderr)
    return 0


def only_there(options: argparse.Namespace) -> int:
    """What the commands on the database cannot do."""
    raise InvalidRequest(
        f"`keys {options.verb}` asks a gateway: set TRUNKLINE_URL and TRUNKLINE_KEY, or give --url and --key-file. On "
        "the database here there are `keys create`, `keys list` and `keys revoke`"
    )


# --- how it is asked and shown


def _path(options: argparse.Namespace, identifier: str | None = None, *, action: str = "") -> str:
    resource: Resource = options.resource
    above = f"/tenants/{segment(options.tenant)}" if resource.of_tenant and options.tenant else ""
    below = "" if identifier is None else f"/{segment(identifier)}"
    return f"{above}/{resource.name}{below}" + (f":{action}" if action else "")


def _body(options: argparse.Namespace) -> dict[str, Any]:
    for name in secrets_given_openly(options.members):
        print(
            f"trunkline: the value of {name} is in the list of processes and in the shell's history: better "
            f"{name}=@FILE, or {name}=@- for stdin",
            file=sys.stderr,
        )
    return members_of(options.members, unset=getattr(options, "unset", ()), file=options.file)


def _query_text(value: object) -> str:
    if isinstance(value, dict):
        raise InvalidRequest("a filter is name=value, without dots")
    return value if isinstance(value, str) else json.dumps(value)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_object(options: argparse.Namespace, found: Mapping[str, Any]) -> int:
    if options.json:
        _print_json(found)
    else:
        print(record(found, width=_width()))
    return 0


def print_table(rows: list[dict[str, Any]], first: tuple[str, ...], *, of_tenant: bool = True) -> None:
    """Rows of one list; the tenant that was asked for stands in none of them."""
    if of_tenant and len({row.get("tenant") for row in rows}) == 1:
        rows = [{name: value for name, value in row.items() if name != "tenant"} for row in rows]
    text, left_out = table(rows, first=first, width=_width())
    print(text)
    if left_out:
        print(f"trunkline: no room for {', '.join(left_out)}; `show` or --json has all", file=sys.stderr)


def _width() -> int | None:
    """Of the terminal; none where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
