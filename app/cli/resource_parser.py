"""The commands over REST and their options: one parser for each verb of each kind of object."""

import argparse
from collections.abc import Callable, Sequence

from app.cli import keys, resources
from app.cli.resources import Resource, here_or_there
from app.domain import DEFAULT_TENANT, is_name

MAX_EXPIRY_DAYS = 3650
MAX_KEY_NAME = 200
LISTED = 1000
MOST_LISTED = 100_000
LAYOUT = argparse.RawDescriptionHelpFormatter
Commands = argparse._SubParsersAction  # noqa: SLF001 - it has no public name
Run = Callable[[argparse.Namespace], int]

_ABOUT = """
The gateway is asked over REST: TRUNKLINE_URL or --url says where it is, TRUNKLINE_KEY, TRUNKLINE_KEY_FILE or --key-file
has the key (never an argument: every user of the machine can read those). stdout has what was asked for; which gateway,
notes and errors are on stderr. Exit codes: 0 done, 1 refused, not there or not working, 2 wrong usage or settings.
"""
_MEMBERS = """
members are those of the REST API (docs/admin-api.md):
  limits.sessions=100        a number, true, false, null, a list or an object in JSON; other text is text
  args[]=--zone args[]=UTC   a list of texts
  env.TOKEN=@token.txt       from a file, @- from stdin: what is secret stays off the command line
  reason=@@home              a text that begins with @
  --file FILE                a JSON object; words come on top of it
"""
_TENANTS = """
examples:
  trunkline tenants list
  trunkline tenants create acme limits.sessions=20
  trunkline tenants set acme limits.sessions=100 limits.requests_per_second=null
  trunkline tenants set acme enabled=false reason="unpaid, ask billing"
  trunkline tenants show acme
"""
_BACKENDS = """
examples:
  trunkline backends create time --tenant acme warm=1 -- mcp-server-time --local-timezone UTC
  trunkline backends create notes --tenant acme command=npx args[]=-y args[]=notes-mcp env.TOKEN=@token.txt
  trunkline backends check time --tenant acme
  trunkline backends set time --tenant acme timeouts.call_s=30 --unset warm
  trunkline backends show time --tenant acme --json
"""
_KEYS = """
scopes:
  mcp:connect             use every backend of the tenant
  mcp:connect:BACKEND     use this one
  tenant:read             look at the tenant's backends and keys
  tenant:admin            all of these, and manage the tenant's keys
  audit:read              read the audit trail
  metrics:read            read /metrics from another machine
  platform:admin          everything, in every tenant; only in the tenant `default`

Where: with --url, or with TRUNKLINE_URL and no --data-dir, a gateway is asked over REST. Otherwise `create`, `list` and
`revoke` work on the gateway's database on this machine, also while it runs: so the first administrator gets a key. Each
says first which it is, and none makes a database. A revocation there reaches every running node within 5 seconds.

examples:
  trunkline keys create --tenant default --scope platform:admin
  trunkline keys create --tenant acme --scope mcp:connect:time --name laptop --url https://gw.example.com
  trunkline keys rotate AbCd1234 --tenant acme
"""
_ISSUERS = """
examples:
  trunkline issuers create https://idp.example.com --tenant acme algorithms[]=RS256 jwks_url=https://idp.example.com/jwks
  trunkline issuers check 4f1c9a --tenant acme token=@token.jwt
  trunkline issuers set 4f1c9a --tenant acme max_scopes[]=mcp:connect
"""
_PRINCIPALS = """
examples:
  trunkline principals set https://idp.example.com alice --tenant acme enabled=false reason="left the company"
  trunkline principals list --tenant acme
"""
_SESSIONS = """
examples:
  trunkline sessions list --tenant acme
  trunkline sessions list --tenant - sort=memory --limit 20
  trunkline sessions show 1f0c7a52d3e4 --tenant acme
  trunkline sessions close 1f0c7a52d3e4 --tenant acme
"""


def add_resource_commands(commands: "Commands[argparse.ArgumentParser]") -> None:
    """All of them."""
    verbs = _noun(commands, resources.TENANTS, "list, create and change tenants", _TENANTS)
    _add_usual_verbs(verbs, resources.TENANTS, "its name")

    verbs = _noun(commands, resources.BACKENDS, "list, create, change and check backends", _BACKENDS)
    _add_usual_verbs(verbs, resources.BACKENDS, "its name")
    _add_check(verbs, resources.BACKENDS, "its name", "start one process of it and say what it offers")
    restart = _verb(verbs, resources.BACKENDS, "restart", resources.restart_object, "end its sessions and processes")
    restart.add_argument("id", metavar="ID", help="its name")

    verbs = _noun(commands, resources.KEYS, "make, list, rotate and revoke API keys", _KEYS)
    _add_key_verbs(verbs)

    verbs = _noun(commands, resources.ISSUERS, "list, create, change and check issuers of tokens", _ISSUERS)
    _add_usual_verbs(verbs, resources.ISSUERS, "its id; for `create` the claim `iss` of its tokens")
    _add_check(verbs, resources.ISSUERS, "its id", "fetch its keys; with token=@FILE say which rule the token fails")

    verbs = _noun(commands, resources.PRINCIPALS, "list who is switched off, switch off and on", _PRINCIPALS)
    _add_list(verbs, resources.PRINCIPALS)
    change = _verb(verbs, resources.PRINCIPALS, "set", resources.change_principal, "switch one off or on")
    change.add_argument("issuer", metavar="ISSUER", help="as `sessions show` names it")
    change.add_argument("subject", metavar="SUBJECT", help="likewise; of a key see `keys set`")
    _add_members(change)

    verbs = _noun(commands, resources.SESSIONS, "list, show and close sessions", _SESSIONS)
    _add_list(verbs, resources.SESSIONS)
    show = _verb(verbs, resources.SESSIONS, "show", resources.show_listed, "show every member of one")
    show.add_argument("id", metavar="ID", help="its id in the list")
    show.set_defaults(limit=MOST_LISTED)
    for name in ("close", "delete"):
        close = _verb(verbs, resources.SESSIONS, name, resources.delete_object, "end one; its client can begin anew")
        close.add_argument("id", metavar="ID", help="its id in the list")
        close.set_defaults(done="closed")

    for resource, text in (
        (resources.PROCESSES, "list backend processes"),
        (resources.USE, "list what each tenant takes"),
        (resources.FAILURES, "list what went wrong with backends lately"),
        (resources.NODES, "list the gateway's nodes"),
        (resources.AUDIT, "list what was changed, newest first"),
    ):
        _add_list(_noun(commands, resource, text, ""), resource)


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What `backends create NAME … -- COMMAND ARGS…` registers stands apart: it may look like options of our own."""
    if list(words[:2]) == ["backends", "create"] and "--" in words:
        position = list(words).index("--")
        return list(words[:position]), list(words[position + 1 :])
    return list(words), []


def _noun(
    commands: "Commands[argparse.ArgumentParser]", resource: Resource, text: str, examples: str
) -> "Commands[argparse.ArgumentParser]":
    about = f"{text[:1].upper()}{text[1:]}."
    epilog = examples + _ABOUT
    noun = commands.add_parser(resource.name, help=text, description=about, epilog=epilog, formatter_class=LAYOUT)
    return noun.add_subparsers(required=True, metavar="COMMAND")


def _verb(
    verbs: "Commands[argparse.ArgumentParser]", resource: Resource, name: str, run: Run, text: str, *, epilog: str = ""
) -> argparse.ArgumentParser:
    about = f"{text[:1].upper()}{text[1:]}."
    verb = verbs.add_parser(name, help=text, description=about, epilog=epilog + _ABOUT, formatter_class=LAYOUT)
    verb.set_defaults(run=run, verb=name, resource=resource, members=[], takes_members=False, file=None)
    verb.add_argument("--url", help="the gateway's address (default TRUNKLINE_URL)")
    verb.add_argument("--key-file", metavar="FILE", help="holds the key; - is stdin (default TRUNKLINE_KEY, _KEY_FILE)")
    verb.add_argument("--key", type=_no_key_here, help=argparse.SUPPRESS)
    verb.add_argument("--json", action="store_true", help="print JSON, with everything the gateway has answered")
    if resource is resources.KEYS:
        verb.add_argument("--tenant", type=tenant_name, required=True, help="whose keys")
    elif resource is resources.AUDIT:
        verb.add_argument("--tenant", type=tenant_name, help="default: all, for platform administrators")
    elif resource in (resources.SESSIONS, resources.PROCESSES, resources.FAILURES) and name == "list":
        verb.add_argument("--tenant", type=_tenant_or_all, default=DEFAULT_TENANT, help="default: default; - is all")
    elif resource.of_tenant:
        verb.add_argument("--tenant", type=tenant_name, default=DEFAULT_TENANT, help="default: default")
    return verb


def _add_usual_verbs(verbs: "Commands[argparse.ArgumentParser]", resource: Resource, identifier: str) -> None:
    one = resource.name.removesuffix("s")
    _add_list(verbs, resource)
    create = _verb(verbs, resource, "create", resources.create_object, f"make a new {one}", epilog=_MEMBERS)
    show = _verb(verbs, resource, "show", resources.show_object, "show every member of one")
    change = _verb(verbs, resource, "set", resources.change_object, "change some members of one", epilog=_MEMBERS)
    delete = _verb(verbs, resource, "delete", resources.delete_object, "remove one, and end what it has running")
    delete.set_defaults(done="deleted")
    for each in (create, show, change, delete):
        each.add_argument("id", metavar="ID", help=identifier)
    _add_members(create)
    _add_members(change)
    change.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="back to its default, or remove it"
    )


def _add_list(verbs: "Commands[argparse.ArgumentParser]", resource: Resource, run: Run | None = None) -> None:
    listing = _verb(verbs, resource, "list", run or resources.list_objects, "list them in a table")
    listing.set_defaults(takes_members=True)
    listing.add_argument("members", nargs="*", metavar="NAME=VALUE", help="only those, where the REST API can filter")
    listing.add_argument("--limit", type=_count, default=LISTED, metavar="N", help=f"at most so many; default {LISTED}")
    if run is not None:
        _add_data_dir(listing)


def _add_check(verbs: "Commands[argparse.ArgumentParser]", resource: Resource, identifier: str, text: str) -> None:
    check = _verb(verbs, resource, "check", resources.check_object, f"{text}; exit code 1 if it does not work")
    check.add_argument("id", metavar="ID", help=identifier)
    _add_members(check)


def _add_members(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(takes_members=True)
    verb.add_argument("members", nargs="*", metavar="NAME=VALUE", help="members of it")
    verb.add_argument("--file", metavar="FILE", help="a JSON object with members; - is stdin")


def _add_key_verbs(verbs: "Commands[argparse.ArgumentParser]") -> None:
    resource = resources.KEYS
    run = here_or_there(keys.create_key, resources.create_key)
    create = _verb(verbs, resource, "create", run, "make a key and show it once", epilog=_KEYS)
    create.add_argument("--scope", action="append", required=True, help="what it allows; can be given repeatedly")
    create.add_argument("--name", type=_key_name, default="", help="what it is for")
    create.add_argument("--expires-days", type=_days, metavar="N", help=f"default {keys.DEFAULT_EXPIRY_DAYS}")
    _add_data_dir(create)
    _add_list(verbs, resource, here_or_there(keys.list_keys, resources.list_objects))
    for name in ("revoke", "delete"):
        run = here_or_there(keys.revoke_key, resources.delete_object)
        revoke = _verb(verbs, resource, name, run, "make a key worthless")
        revoke.set_defaults(done="revoked")
        _add_data_dir(revoke)
        _add_key_id(revoke)

    run = here_or_there(resources.only_there, resources.rotate_key)
    rotate = _verb(verbs, resource, "rotate", run, "make a successor with the same name, scopes and life")
    rotate.add_argument("--revoke", action="store_true", help="revoke the old key at once")
    run = here_or_there(resources.only_there, resources.show_object)
    show = _verb(verbs, resource, "show", run, "show every member of one, but not the key itself")
    run = here_or_there(resources.only_there, resources.change_object)
    change = _verb(verbs, resource, "set", run, "change some members of one", epilog=_MEMBERS)
    change.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="back to its default, or remove it"
    )
    for each in (rotate, show, change):
        _add_key_id(each)
    _add_members(change)


def _add_key_id(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("id", metavar="ID", help="the key's id: its 8 characters after tlk_")


def _add_data_dir(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--data-dir", metavar="DIR", help="whose database, instead of a gateway and of TRUNKLINE_DATA_DIR"
    )


def tenant_name(text: str) -> str:
    """For argparse."""
    if not is_name(text):
        raise argparse.ArgumentTypeError("a tenant's name is lower-case letters, digits and hyphens, 63 at most")
    return text


def _tenant_or_all(text: str) -> str:
    return text if text == resources.ALL else tenant_name(text)


def _no_key_here(_: str) -> str:
    """Not an unknown option, and not an abbreviation either: both would repeat the key."""
    raise argparse.ArgumentTypeError(
        "every user of the machine can read arguments; set TRUNKLINE_KEY, or give --key-file, and rotate this key"
    )


def _key_name(text: str) -> str:
    if len(text) > MAX_KEY_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a name is up to {MAX_KEY_NAME} printable characters")
    return text


def _days(text: str) -> int:
    return _whole(text, MAX_EXPIRY_DAYS)


def _count(text: str) -> int:
    return _whole(text, MOST_LISTED)


def _whole(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"allowed are 1 to {most}")
    return int(text)
