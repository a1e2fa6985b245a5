"""The commands over REST and their options: one parser for each verb of each resource."""

import argparse
from collections.abc import Sequence

from app.cli.usage import nouns
from app.cli.usage.later import HereOrThere, Later
from app.cli.usage.nouns import Resource
from app.cli.usage.options import (
    DEFAULT_EXPIRY_DAYS,
    Commands,
    Run,
    add_command,
    add_gateway_options,
    add_message_options,
    key_name,
    name_of,
    no_key_here,
    tenant_or_all,
    whole_number,
)
from app.domain import DEFAULT_TENANT, views

MAX_EXPIRY_DAYS = 3650
LISTED = 1000
MOST_LISTED = 100_000
_ON_DATABASE = {
    "create": "app.cli.keys.create_key",
    "list": "app.cli.keys.list_keys",
    "revoke": "app.cli.keys.revoke_key",
    "delete": "app.cli.keys.revoke_key",
}

_ABOUT = """
These commands use the REST API of a gateway: TRUNKLINE_URL or --url is its address; TRUNKLINE_KEY, TRUNKLINE_KEY_FILE
or --key-file gives the key (never an argument: every user of the machine can read those). The result is on stdout; the
gateway's address, notes and errors are on stderr. Exit codes: 0 done, 1 refused, not found or not working, 2 wrong
usage or settings.
"""
_MEMBERS = """
members are those of the REST API (docs/admin-api.md):
  limits.sessions=100        JSON: a number, true, false, null, a list or an object; anything else is text
  args[]=--zone args[]=UTC   a list of texts
  env.TOKEN=@token.txt       from a file, @- from stdin: keeps secrets off the command line
  reason=@@home              a text that begins with @
  --file FILE                a JSON object; NAME=VALUE words override its members
"""
_TENANTS = """
examples:
  trunkline tenants list
  trunkline tenants create acme limits.sessions=20
  trunkline tenants set acme limits.sessions=100 limits.requests_per_second=null
  trunkline tenants set acme sandbox_exempt=true
  trunkline tenants set acme enabled=false reason="unpaid, ask billing"
  trunkline tenants show acme
"""
_BACKENDS = """
examples:
  trunkline backends create time --tenant acme warm=1 -- mcp-server-time --local-timezone UTC
  trunkline backends create notes --tenant acme sandbox.network=web env.TOKEN=@token.txt -- npx -y notes-mcp
  trunkline backends create far --tenant acme url=https://far.example/mcp headers.Authorization=@token.txt
  trunkline backends check time --tenant acme
  trunkline backends set time --tenant acme timeouts.call_s=30 --unset warm
  trunkline backends set time --tenant acme sandbox.network=web sandbox.read[]=/srv/zones limits.memory_mb=2048
  trunkline backends set time --tenant acme sandbox.mode=require sandbox.require[]=files sandbox.require[]=network
  trunkline backends set notes --tenant acme state=keep limits.disk_mb=1024
  trunkline backends set time --tenant acme start=fork warm=auto recovery=respawn timeouts.park_s=300
  trunkline backends show time --tenant acme --json
  trunkline backends outdated --tenant acme
  trunkline backends update notes --tenant acme --dry-run
"""
_TOOLSETS = """
A toolset is one address for several backends: clients see the tools of all of them, and only what is called runs.

examples:
  trunkline toolsets create work --tenant acme members='[{"backend": "time"}, {"backend": "notes", "prefix": "n_"}]'
  trunkline toolsets show work --tenant acme
  trunkline toolsets set work --tenant acme title="Everything for work"
"""
_GUIDES = """
A guide is a text in Markdown for those who use tools: a prompt and a resource of each toolset that names it.

examples:
  trunkline guides create refunds --tenant acme description="Who may get money back, and how" text=@refunds.md
  trunkline toolsets set work --tenant acme guides[]=refunds guides[]=style-*
  trunkline guides set refunds --tenant acme text=@refunds.md
"""
_RECIPES = """
A recipe is a tool of a toolset that is made of calls of its other tools (docs/guides-and-recipes.md). It is checked
when it is made or changed: the error names the step. `show` checks it again.

examples:
  trunkline recipes create refund --tenant acme --file refund.json
  trunkline recipes show refund --tenant acme
  trunkline recipes set refund --tenant acme deadline_s=30
"""
_CATALOG = """
examples:
  trunkline catalog search --tenant acme convert a time to another zone
  trunkline catalog tools notes --tenant acme
  trunkline catalog diff notes --tenant acme
  trunkline catalog approve notes --tenant acme tools[]=add tools[]=list
  trunkline catalog reject notes --tenant acme tools[]=add
  trunkline backends set notes --tenant acme pin=block
"""
_KEYS = """
scopes:
  mcp:connect             use every backend of the tenant
  mcp:connect:BACKEND     use one backend
  tenant:read             read the tenant's backends and keys
  audit:read              read the audit trail
  tenant:admin            all of the above, and manage the tenant's keys
  metrics:read            read /metrics from another machine
  platform:admin          everything, in every tenant; only in the tenant `default`

With --url, or with TRUNKLINE_URL and no --data-dir, these commands use a gateway's REST API. Otherwise `create`, `list`
and `revoke` use the gateway's database on this machine, also while it runs: this is how the first administrator gets a
key. Each prints first which one it uses; none creates a database. A revocation in the database reaches every running
node within 2 seconds.

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
_CLIENTS = """
Clients of the tenant's own authorization server (docs/sign-in.md). Most register themselves: only those that have to be
known before, and those that act without a person, are created here.

examples:
  trunkline clients create desk --tenant acme redirect_uris[]=https://desk.example/callback
  trunkline clients create batch --tenant acme authentication=secret scopes[]=mcp:connect:time
  trunkline clients delete batch --tenant acme
"""
_CONNECTIONS = """
examples:
  trunkline connections list --tenant acme
  trunkline connections list --tenant acme mine=true
  trunkline connections delete 4f1c9a0b2d3e4f5a --tenant acme
"""
_PRINCIPALS = """
examples:
  trunkline principals set https://idp.example.com alice --tenant acme enabled=false reason="left the company"
  trunkline principals list --tenant acme
"""
_ACCESS = """
Nothing is called. What is looked at are the lists of who may use what (docs/access.md), not the scopes of credentials.

examples:
  trunkline access explain query --tenant acme --as alice@example.com
  trunkline access explain query --tenant acme --as bob@example.com --group analysts --at db
  trunkline access explain query --tenant acme --as key:8Jd0sA2f
  trunkline callers list --tenant acme
  trunkline backends set db --tenant acme access='[{"who": {"group": "analysts"}, "tools": ["query", "list_*"]}]'
"""
_SESSIONS = """
examples:
  trunkline sessions list --tenant acme
  trunkline sessions list --tenant - sort=memory --limit 20
  trunkline sessions show 1f0c7a52d3e4 --tenant acme
  trunkline sessions close 1f0c7a52d3e4 --tenant acme
"""


def add_resource_commands(commands: Commands) -> None:
    """Adds `tenants`, `backends`, `toolsets`, `keys` and so on, each with its verbs."""
    tenants = _Noun(commands, nouns.TENANTS, "list, create and change tenants", _TENANTS)
    tenants.add_usual_verbs("its name")

    backends = _Noun(commands, nouns.BACKENDS, "list, create, change and check backends", _BACKENDS)
    backends.add_usual_verbs("its name")
    check = backends.add_check("its name", "start one process of a backend and show what it offers")
    check.set_defaults(run=Later("app.cli.allowing.check_backend"))
    allow_help = "add what its sandbox kept from it, as far as this key may, and check again, at most five times"
    check.add_argument("--allow", action="store_true", help=allow_help)
    backends.add(
        "restart", "app.cli.resources.restart_object", "end the sessions and processes of a backend", "its name"
    )

    _add_package_verbs(backends)

    for resource, examples in ((nouns.TOOLSETS, _TOOLSETS), (nouns.GUIDES, _GUIDES), (nouns.RECIPES, _RECIPES)):
        _Noun(commands, resource, resource.about, examples).add_usual_verbs("its name")
    _add_catalog_verbs(_Noun(commands, nouns.CATALOG, "what the backends offer, and what of it is approved", _CATALOG))

    _add_key_verbs(_Noun(commands, nouns.KEYS, "create, list, rotate and revoke API keys", _KEYS))

    issuers = _Noun(commands, nouns.ISSUERS, "list, create, change and check issuers of tokens", _ISSUERS)
    issuers.add_usual_verbs("its id; for `create` the claim `iss` of its tokens")
    issuers.add_check("its id", "fetch the keys of an issuer; with token=@FILE show which rule the token fails")

    _Noun(commands, nouns.OAUTH_CLIENTS, nouns.OAUTH_CLIENTS.about, _CLIENTS).add_usual_verbs("its name")
    connections = _Noun(commands, nouns.CONNECTIONS, "list and end what people have connected", _CONNECTIONS)
    connections.add_list()
    connections.add("show", "app.cli.resources.show_object", "show one connection", "its id in the list")
    text = "end a connection, its tokens and its sessions"
    ended = connections.add("delete", "app.cli.resources.delete_object", text, "its id in the list")
    ended.set_defaults(done="ended")

    principals = _Noun(
        commands, nouns.PRINCIPALS, "list principals that are switched off, switch off and on", _PRINCIPALS
    )
    principals.add_list()
    change = principals.add("set", "app.cli.resources.change_principal", "switch a principal off or on")
    change.add_argument("issuer", metavar="ISSUER", help="as `sessions show` names it")
    change.add_argument("subject", metavar="SUBJECT", help="likewise; for a key use `keys set`")
    _add_members(change)
    _add_access_verbs(_Noun(commands, nouns.ACCESS, "ask who may call which tool", _ACCESS))
    _add_what_runs(commands)


def _add_access_verbs(access: "_Noun") -> None:
    text = "say whether somebody may call a tool, and which entry of `access` decides"
    explain = access.add("explain", "app.cli.tools.explain_access", text, "the tool, as it is called")
    who = "the subject of tokens; or key:ID, client:NAME"
    explain.add_argument("--as", dest="who", required=True, metavar="WHO", help=who)
    explain.add_argument("--group", dest="groups", action="append", default=[], metavar="GROUP", help="of the tokens")
    explain.add_argument("--issuer", help="of the tokens, where several have such a subject")
    explain.add_argument("--at", type=name_of("backend"), metavar="BACKEND", help="only at this backend or toolset")


def _add_what_runs(commands: Commands) -> None:
    sessions = _Noun(commands, nouns.SESSIONS, "list, show and close sessions", _SESSIONS)
    sessions.add_list()
    sessions.add("show", "app.cli.resources.show_listed", "show one session", "its id in the list").set_defaults(
        limit=MOST_LISTED
    )
    for name in ("close", "delete"):
        text = "end a session; its client can open a new one"
        sessions.add(name, "app.cli.resources.delete_object", text, "its id in the list").set_defaults(done="closed")

    _add_inspection_verbs(_Noun(commands, nouns.INSPECTIONS, "list, show and close inspections of sessions"))

    processes = _Noun(commands, nouns.PROCESSES, "list and restart backend processes")
    processes.add_list(views.PROCESSES.help)
    text = "stop one process, so that another takes its place"
    processes.add("restart", "app.cli.resources.restart_process", text, "its id in the list; not its pid")

    for resource, text in nouns.LISTS:
        _Noun(commands, resource, text).add_list(text)


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates COMMAND from `backends create NAME -- COMMAND ARGS`: its words may look like our own options."""
    if list(words[:2]) == ["backends", "create"] and "--" in words:
        position = list(words).index("--")
        return list(words[:position]), list(words[position + 1 :])
    return list(words), []


def is_without_dashes(words: Sequence[str], behind: Sequence[str], command_line: Sequence[str]) -> bool:
    """Whether `backends create NAME COMMAND ARGS` lacks the `--`: the first word behind the name is no member."""
    is_create = list(words[:2]) == ["backends", "create"] and not command_line
    return is_create and bool(behind) and "=" not in behind[0] and not behind[0].startswith("-")


class _Noun:
    """The commands of one resource, such as `trunkline tenants ...`."""

    def __init__(self, commands: Commands, resource: Resource, text: str, examples: str = "") -> None:
        noun = add_command(commands, resource.name, text, examples + _ABOUT)
        self._resource, self._verbs = resource, noun.add_subparsers(required=True, metavar="COMMAND")
        self._examples = examples

    def add(self, name: str, run: str, text: str, id_help: str = "", *, epilog: str = "") -> argparse.ArgumentParser:
        """Adds one verb. `run` is the full name of a function; with `id_help` the verb has an argument ID."""
        verb, resource = add_command(self._verbs, name, text, epilog + _ABOUT), self._resource
        done_by: Run = Later(run)
        if id_help:
            verb.add_argument("id", metavar="ID", help=id_help)
        add_gateway_options(verb)
        verb.add_argument("--key", type=no_key_here, help=argparse.SUPPRESS)
        verb.add_argument("--json", action="store_true", help="print the gateway's answer as JSON")
        if resource is nouns.KEYS:
            done_by = HereOrThere(Later(_ON_DATABASE.get(name, "app.cli.resources.only_there")), Later(run))
            verb.add_argument("--tenant", type=name_of("tenant"), required=True, help="whose keys")
            if name in _ON_DATABASE:
                data_dir_help = "use the database there, not a gateway or TRUNKLINE_DATA_DIR"
                verb.add_argument("--data-dir", metavar="DIR", help=data_dir_help)
        elif resource is nouns.AUDIT:
            verb.add_argument("--tenant", type=name_of("tenant"), help="default: all, for platform administrators")
        elif resource.of_all and name == "list":
            verb.add_argument("--tenant", type=tenant_or_all, default=DEFAULT_TENANT, help="default: default; - is all")
        elif resource.of_tenant:
            verb.add_argument("--tenant", type=name_of("tenant"), default=DEFAULT_TENANT, help="default: default")
        verb.set_defaults(
            run=done_by, verb=name, resource=resource, members=[], takes_members=False, unset=[], file=None
        )
        return verb

    def add_usual_verbs(self, id_help: str) -> None:
        """Adds `list`, `create`, `show`, `set` and `delete`."""
        one, epilog = self._resource.name.removesuffix("s"), self._examples + _MEMBERS
        self.add_list()
        _add_members(
            self.add("create", "app.cli.resources.create_object", f"create a new {one}", id_help, epilog=epilog)
        )
        self.add("show", "app.cli.resources.show_object", f"show one {one}", id_help)
        _add_members(
            self.add("set", "app.cli.resources.change_object", f"change one {one}", id_help, epilog=epilog),
            can_unset=True,
        )
        delete = self.add(
            "delete",
            "app.cli.resources.delete_object",
            f"delete one {one}" + ("" if one in ("guide", "recipe") else " and end its sessions"),
            id_help,
        )
        delete.set_defaults(done="deleted")

    def add_list(self, text: str = "") -> None:
        verb = self.add("list", "app.cli.resources.list_objects", text or f"list the {self._resource.name}")
        limit = whole_number(MOST_LISTED)
        verb.set_defaults(takes_members=True)
        verb.add_argument("members", nargs="*", metavar="NAME=VALUE", help="filters and order, as in the REST API")
        verb.add_argument(
            "--limit", type=limit, default=LISTED, metavar="N", help=f"at most this many; default {LISTED}"
        )

    def add_check(self, id_help: str, text: str) -> argparse.ArgumentParser:
        text = f"{text}; exit code 1 if it does not work"
        verb = self.add("check", "app.cli.resources.check_object", text, id_help)
        _add_members(verb)
        return verb


def _add_members(verb: argparse.ArgumentParser, *, can_unset: bool = False) -> None:
    verb.set_defaults(takes_members=True)
    verb.add_argument("members", nargs="*", metavar="NAME=VALUE", help="members of the object")
    verb.add_argument("--file", metavar="FILE", help="a JSON object with members; - is stdin")
    if can_unset:
        verb.add_argument(
            "--unset", action="append", metavar="NAME", help="set this member to its default, or remove it"
        )


def _add_package_verbs(backends: _Noun) -> None:
    text = "install another version of a backend's package, for new sessions; exit code 1 if it does not work"
    update = backends.add("update", "app.cli.updating.update_backend", text, "its name")
    update.add_argument("--to", metavar="VERSION", help="default: the newest that its command allows")
    update.add_argument("--dry-run", action="store_true", help="only show what it would change")
    backends.add("outdated", "app.cli.updating.list_outdated", "list backends whose package has a newer version")


def _add_catalog_verbs(catalog: _Noun) -> None:
    catalog.add_list("list how many tools, prompts and resources each backend offers")
    catalog.add("show", "app.cli.resources.show_object", "show the definitions of one backend", "the backend's name")
    tools = catalog.add("tools", "app.cli.tools.list_tools", "show what has changed since it was approved", "its name")
    tools.set_defaults(limit=MOST_LISTED)
    diff = catalog.add("diff", "app.cli.tools.show_differences", "show what exactly has changed", "the backend's name")
    diff.add_argument("tools", nargs="*", metavar="TOOL", help="only these")
    diff.set_defaults(limit=MOST_LISTED)
    search = catalog.add("search", "app.cli.tools.search_tools", "find tools by what they do")
    search.add_argument("query", nargs="+", metavar="WORD", help="what somebody wants to do, in a few words")
    search.add_argument("--toolset", type=name_of("toolset"), help="only what this one shows, by the names it shows")
    search.add_argument("--limit", type=whole_number(50), default=5, metavar="N", help="at most this many; default 5")
    for name, done in (("approve", "approved"), ("reject", "rejected")):
        decide = catalog.add(
            name,
            "app.cli.tools.decide_tools",
            f"{name} tools as a backend offers them now: those that wait",
            "its name",
        )
        decide.set_defaults(done=done)
        _add_members(decide)


def _add_inspection_verbs(inspections: _Noun) -> None:
    inspections.add_list()
    inspections.add("show", "app.cli.resources.show_object", "show one inspection", "its id")
    messages = inspections.add("messages", "app.cli.top.traffic.show_messages", "show what it has seen", "its id")
    add_message_options(messages)
    for name in ("close", "delete"):
        text = "end an inspection, and remove what it has seen"
        inspections.add(name, "app.cli.resources.delete_object", text, "its id").set_defaults(done="closed")


def _add_key_verbs(noun: _Noun) -> None:
    key_id, days = "the key's id: the 8 characters after tlk_", whole_number(MAX_EXPIRY_DAYS)
    create = noun.add("create", "app.cli.resources.create_key", "create a key and show it once", epilog=_KEYS)
    create.add_argument("--scope", action="append", required=True, help="what it allows; can be given repeatedly")
    create.add_argument("--name", type=key_name, default="", help="a note on its purpose")
    create.add_argument("--expires-days", type=days, metavar="N", help=f"default {DEFAULT_EXPIRY_DAYS}")
    noun.add_list()
    for name in ("revoke", "delete"):
        noun.add(
            name, "app.cli.resources.delete_object", "revoke a key, so that it cannot be used any more", key_id
        ).set_defaults(done="revoked")
    rotate = noun.add(
        "rotate", "app.cli.resources.rotate_key", "create a successor with the same name, scopes and life", key_id
    )
    rotate.add_argument("--revoke", action="store_true", help="revoke the old key at once")
    noun.add("show", "app.cli.resources.show_object", "show one key, but not its secret", key_id)
    _add_members(
        noun.add("set", "app.cli.resources.change_object", "change one key", key_id, epilog=_MEMBERS), can_unset=True
    )
