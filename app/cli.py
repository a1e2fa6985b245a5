"""The command `trunkline`. Exit codes: 0 done, 1 failed, 2 wrong usage or settings."""

import argparse
import asyncio
import http.client
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from app import __version__, doctor
from app.admin.entries import body_of, validated
from app.admin.schemas import BackendBody
from app.auth import KeyMaker
from app.auth.policy import is_platform_scope, is_scope
from app.connect import CLIENTS, DEFAULT_KEY_ENV, Target, endpoint, instructions, local_url
from app.domain import DEFAULT_TENANT, is_name
from app.errors import GatewayError, InvalidRequest, SettingsError
from app.fleet import serve_nodes
from app.importing import is_done, parse, report, report_json, settle
from app.settings import PREFIX, Settings, is_loopback, is_wildcard
from app.storage import ApiKey, ApiKeyRepository, BackendRepository, Database, TenantRepository
from app.storage.acts import Act
from app.storage.migrate import check, prepare, upgrade

DEFAULT_EXPIRY_DAYS = 90
MAX_EXPIRY_DAYS = 3650
MAX_KEY_NAME = 200
MAX_NODES = 64  # of one command: more than the cores of most machines
MAX_IMPORT_BYTES = 2**20
_PAGE = 200
_REST_S = 30.0
_LAYOUT = argparse.RawDescriptionHelpFormatter
_T = TypeVar("_T")

_EXAMPLES = """
examples:
  trunkline serve                                  one node on http://127.0.0.1:8080
  trunkline serve --demo                           the same with a backend to try it on
  trunkline serve --nodes 4                        four nodes that share the port, for four cores
  trunkline keys create --tenant default --scope platform:admin
                                                   the first administrator's key
  trunkline keys create --tenant acme --scope mcp:connect --expires-days 30
  trunkline keys list --tenant acme
  trunkline connect cursor --backend time          what to put into a client
  trunkline import ~/.cursor/mcp.json              which backends that file would give; --apply makes them
  trunkline doctor                                 what works on this machine

Settings are environment variables TRUNKLINE_<NAME>, for example TRUNKLINE_DATA_DIR; see docs/settings.md.
"""
_KEYS_EXAMPLES = """
scopes:
  mcp:connect             use every backend of the tenant
  mcp:connect:BACKEND     use this one
  tenant:read             look at the tenant's backends and keys
  tenant:admin            all of these, and manage the tenant's keys
  audit:read              read the audit trail
  metrics:read            read /metrics from another machine
  platform:admin          everything, in every tenant; only in the tenant `default`

The commands work on the database directly, also while the gateway runs; a revocation
reaches every running node within 5 seconds.
"""
_CONNECT_EXAMPLES = f"""
clients: {", ".join(CLIENTS)}

The configuration alone is on stdout; where it goes is said on stderr:
  trunkline connect vscode --backend time > .vscode/mcp.json

Clients read the key from the environment variable NAME (default {DEFAULT_KEY_ENV}) where they can. For those that
cannot (claude-desktop, cline) --key-env NAME writes the key that is in NAME into the output.
"""
_IMPORT_EXAMPLES = """
formats: mcpServers (Claude, Cursor, Windsurf, Cline), servers (VS Code), mcp (OpenCode),
mcp_servers (Codex, TOML), and server.json of the MCP registry.

  trunkline import mcp.json                              only look: one line per server
  trunkline import mcp.json --env GITHUB_TOKEN --apply   the token is taken from the environment
  trunkline import mcp.json --apply --url https://gw.example.com --key-env ADMIN_KEY

Placeholders like ${GITHUB_TOKEN} are never stored: give the value with --env. Registering a command is permission to
run it with the gateway's rights: read what is shown first. Exit code 1 if a server cannot be imported.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except SettingsError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        return 2
    except GatewayError as error:
        print(f"trunkline: {error}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        return 130
    return code


# --- the commands


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options, host=options.host, port=options.port)
    if options.nodes is not None:
        return serve_nodes(settings, options.nodes, demo=options.demo)
    # Here, because the web framework takes half a second to import and no other command needs it.
    from app.serve import serve  # noqa: PLC0415

    return serve(settings, demo=options.demo, member=options.member)


def _migrate(options: argparse.Namespace) -> int:
    url = _settings(options).database_url
    if options.check:
        check(url)
    else:
        upgrade(url)
    print("the database is up to date")
    return 0


def _version(_: argparse.Namespace) -> int:
    print(f"trunkline {__version__}")
    return 0


def _create_key(options: argparse.Namespace) -> int:
    scopes = frozenset(options.scope)
    _check_scopes(options.tenant, scopes)
    settings = _settings(options)
    new, now = KeyMaker(settings.secret_key).make(), datetime.now(UTC)
    expires_at = now + timedelta(days=options.expires_days)
    record = ApiKey(new.id, options.tenant, options.name, new.digest, new.pepper_version, scopes, now, expires_at)
    act = _act(options.tenant, "key.create", f"keys/{new.id}", " ".join(sorted(scopes)))
    _in_database(settings, lambda database: ApiKeyRepository(database).create(options.tenant, record, act=act))
    if options.json:
        shown = {"tenant": options.tenant, "scopes": sorted(scopes), "expires_at": expires_at.isoformat()}
        print(json.dumps({"id": new.id, "key": new.text, **shown}))
    else:
        print(new.text)
        print(
            f"This key of tenant {options.tenant} is shown once. Its id is {new.id}; "
            f"it expires on {expires_at:%Y-%m-%d}. Send it as: Authorization: Bearer <key>",
            file=sys.stderr,
        )
    return 0


def _list_keys(options: argparse.Namespace) -> int:
    keys = _in_database(_settings(options), lambda database: _all_keys(database, options.tenant))
    if options.json:
        print(json.dumps([_shown(key) for key in keys]))
        return 0
    for key in keys:
        print(f"{key.id}  {_state(key):<19}  {' '.join(sorted(key.scopes))}  {ascii(key.name)[1:-1]}".rstrip())
    return 0


def _revoke_key(options: argparse.Namespace) -> int:
    act = _act(options.tenant, "key.revoke", f"keys/{options.id}")
    _in_database(
        _settings(options),
        lambda database: ApiKeyRepository(database).revoke(options.tenant, options.id, act.at, act=act),
    )
    print(f"revoked {options.id}; every running node knows within 5 seconds", file=sys.stderr)
    return 0


def _connect(options: argparse.Namespace) -> int:
    client, key_env = CLIENTS[options.client], options.key_env or DEFAULT_KEY_ENV
    backend = options.backend or _only_backend(options)
    base = options.url or _base_url(_settings_only_read(options))
    key = os.environ.get(key_env) if options.key_env and client.key_in_text else None
    target = Target(backend, endpoint(base, options.tenant, backend), key_env, key)
    print(client.render(target), end="")
    print(instructions(client, target), file=sys.stderr)
    return 0


def _import(options: argparse.Namespace) -> int:
    text, is_toml = _read_file(options.file), options.file.endswith(".toml")
    names, create = (_names_over_rest, _create_over_rest) if options.url else (_names_stored, _create_stored)
    entries = [validated(entry) for entry in parse(text, is_toml=is_toml, supplied=dict(options.env))]
    entries = settle(entries, names(options))
    if options.apply:
        bodies = {entry.name: body_of(entry) for entry in entries if not entry.problems}
        failed = create(options, bodies)
        entries = [entry.refused(failed[entry.name]) if entry.name in failed else entry for entry in entries]
    print((report_json if options.json else report)(entries, applied=options.apply))
    return 0 if is_done(entries) else 1


def _doctor(options: argparse.Namespace) -> int:
    try:
        checks = doctor.examine(_subject(_settings_only_read(options)))
    except SettingsError as error:
        checks = doctor.examine(None, str(error))
    print(doctor.as_json(checks) if options.json else doctor.as_table(checks))
    return 0 if doctor.is_well(checks) else 1


# --- what they are made of


def _settings(options: argparse.Namespace, **overrides: object) -> Settings:
    return Settings.from_env(os.environ, data_dir=options.data_dir, **overrides)


def _settings_only_read(options: argparse.Namespace) -> Settings:
    """The settings of a node here, without its data directory or key being made."""
    with tempfile.TemporaryDirectory() as aside:
        settings = Settings.from_env(os.environ, data_dir=aside)
    named = options.data_dir or os.environ.get(PREFIX + "DATA_DIR", "").strip() or "trunkline-data"
    data_dir = Path(named).expanduser().absolute()
    return replace(settings, data_dir=data_dir, database_url=settings.database_url.replace(aside, str(data_dir)))


def _look_into_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T | None:
    """What is in the database, which is left as it is; None if there is none yet."""
    file = settings.database_url.removeprefix("sqlite:///")
    if file != settings.database_url and not Path(file).exists():
        return None
    check(settings.database_url)
    return _with_database(settings, do)


def _in_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T:
    prepare(settings.database_url)
    return _with_database(settings, do)


def _with_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        database = Database(settings.database_url)
        try:
            return await do(database)
        finally:
            await database.aclose()

    return asyncio.run(run())


def _act(tenant: str, action: str, target: str, detail: str = "") -> Act:
    """For the audit trail: on the command line the operating system knows who it is."""
    return Act(tenant, (DEFAULT_TENANT, "cli", f"uid {os.getuid()}"), action, target, datetime.now(UTC), "", detail)


async def _all_keys(database: Database, tenant: str) -> list[ApiKey]:
    await TenantRepository(database).get(tenant)
    repository, keys = ApiKeyRepository(database), list[ApiKey]()
    while page := await repository.list(tenant, after=keys[-1].id if keys else "", limit=_PAGE):
        keys += page
    return keys


async def _backend_names(database: Database, tenant: str) -> list[str]:
    await TenantRepository(database).get(tenant)
    repository, names = BackendRepository(database), list[str]()
    while page := await repository.list(tenant, after=names[-1] if names else "", limit=_PAGE):
        names += [spec.name for spec in page]
    return names


def _only_backend(options: argparse.Namespace) -> str:
    if options.url is not None:
        raise InvalidRequest("which backend? Give --backend; what another gateway has cannot be seen from here")
    settings = _settings_only_read(options)
    names = _look_into_database(settings, lambda database: _backend_names(database, options.tenant)) or []
    if len(names) == 1:
        return names[0]
    known = f"the tenant {options.tenant} has {', '.join(names[:20])}" if names else "none is registered here"
    raise InvalidRequest(f"which backend? Give --backend; {known}")


def _base_url(settings: Settings) -> str:
    return settings.public_url or local_url(settings.host, settings.port)


def _subject(settings: Settings) -> doctor.Subject:
    is_set = any(os.environ.get(PREFIX + name) for name in ("SECRET_KEY", "SECRET_KEY_FILE"))
    return doctor.Subject(
        host=settings.host,
        port=settings.port,
        data_dir=settings.data_dir,
        database_url=settings.database_url,
        secret_key_is_set=is_set,
        max_processes=settings.max_processes,
        redis_url=settings.redis_url,
        node_url=settings.node_url,
        host_is_wildcard=is_wildcard(settings.host),
        host_is_loopback=is_loopback(settings.host),
    )


# --- import


def _read_file(path: str) -> str:
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            content = file.read(MAX_IMPORT_BYTES + 1)
        if len(content) > MAX_IMPORT_BYTES:
            raise InvalidRequest(f"{path!r} is larger than {MAX_IMPORT_BYTES} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path!r} is not UTF-8 text") from None


def _names_stored(options: argparse.Namespace) -> list[str]:
    look = _in_database if options.apply else _look_into_database
    settings = _settings(options) if options.apply else _settings_only_read(options)
    return look(settings, lambda database: _backend_names(database, options.tenant)) or []


def _create_stored(options: argparse.Namespace, bodies: Mapping[str, BackendBody]) -> dict[str, str]:
    """Makes the backends, and returns why some could not be made."""

    async def create(database: Database) -> dict[str, str]:
        repository, failed = BackendRepository(database), dict[str, str]()
        for name, body in bodies.items():
            try:
                act = _act(options.tenant, "backend.create", f"backends/{name}")
                await repository.create(options.tenant, body.spec(options.tenant), act=act)
            except GatewayError as error:  # made by somebody else since we looked, for example
                failed[name] = str(error)
        return failed

    return _in_database(_settings(options), create)


def _names_over_rest(options: argparse.Namespace) -> list[str]:
    names, cursor = list[str](), ""
    while True:
        query = urlencode({"limit": 100, **({"cursor": cursor} if cursor else {})})
        page = _rest(options, "GET", f"?{query}")
        names += [each["name"] for each in page["items"]]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return names


def _create_over_rest(options: argparse.Namespace, bodies: Mapping[str, BackendBody]) -> dict[str, str]:
    failed = {}
    for name, body in bodies.items():
        try:
            _rest(options, "POST", body=body.model_dump_json())
        except GatewayError as error:
            failed[name] = str(error)
    return failed


def _rest(options: argparse.Namespace, method: str, query: str = "", body: str | None = None) -> Any:
    """One request to the tenant's backends at --url. No redirect is followed: it would take the key along."""
    key = os.environ.get(options.key_env or DEFAULT_KEY_ENV)
    if not key:
        raise InvalidRequest(
            f"there is no key in {options.key_env or DEFAULT_KEY_ENV}; name its variable with --key-env"
        )
    parts = urlsplit(endpoint(options.url, options.tenant, "x"))  # checks the URL
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.netloc, timeout=_REST_S)
    path = f"{urlsplit(options.url).path.rstrip('/')}/api/v1/tenants/{options.tenant}/backends{query}"
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        status, content = answer.status, answer.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise GatewayError(f"{options.url} does not answer: {error}") from None
    finally:
        connection.close()
    try:
        document = json.loads(content)
    except ValueError:
        document = {}
    if 200 <= status < 300 and isinstance(document, dict) and document:
        return document
    problem = document.get("detail") or document.get("title") if isinstance(document, dict) else None
    raise GatewayError(f"{options.url} answers {status}: {problem or 'no gateway'}")


def _check_scopes(tenant: str, scopes: frozenset[str]) -> None:
    for scope in sorted(scopes):
        if not is_scope(scope):
            raise InvalidRequest(f"there is no scope {scope!r}; `trunkline keys create --help` lists them")
        if is_platform_scope(scope) and tenant != DEFAULT_TENANT:
            raise InvalidRequest(f"only keys of the tenant {DEFAULT_TENANT} can have the scope {scope}")


def _shown(key: ApiKey) -> dict[str, object]:
    shown = {"id": key.id, "tenant": key.tenant, "name": key.name, "scopes": sorted(key.scopes)}
    moments = {name: getattr(key, name) for name in ("created_at", "expires_at", "revoked_at", "last_used_at")}
    return {**shown, **{name: moment and moment.isoformat() for name, moment in moments.items()}}


def _state(key: ApiKey) -> str:
    if key.revoked_at:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "no expiry"
    return f"{'expired' if key.expires_at <= datetime.now(UTC) else 'until'} {key.expires_at:%Y-%m-%d}"


# --- the command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trunkline", description="A multi-tenant remote MCP gateway.", epilog=_EXAMPLES, formatter_class=_LAYOUT
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = _command(commands, "serve", _serve, "run one node, or several")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on; 0 takes a free one (default 8080)")
    serve.add_argument("--demo", action="store_true", help="add a demo backend and print a key for it")
    several = serve.add_mutually_exclusive_group()
    several.add_argument(
        "--nodes", type=_node_count, metavar="N", help="run N nodes that share the port; needs TRUNKLINE_REDIS_URL"
    )
    several.add_argument("--member", type=int, help=argparse.SUPPRESS)  # how --nodes starts each of them

    migrate = _command(commands, "migrate", _migrate, "bring the database up to date")
    migrate.add_argument("--check", action="store_true", help="only look; exit code 1 if it is not up to date")

    keys = commands.add_parser(
        "keys", help="make, list and revoke API keys", epilog=_KEYS_EXAMPLES, formatter_class=_LAYOUT
    )
    _add_key_commands(keys.add_subparsers(required=True, metavar="COMMAND"))

    connect = _command(commands, "connect", _connect, "print the configuration of a client")
    connect.add_argument("client", metavar="CLIENT", choices=[*CLIENTS], help=", ".join(CLIENTS))
    connect.add_argument("--tenant", type=_tenant_name, default=DEFAULT_TENANT, help="default: default")
    connect.add_argument("--backend", type=_backend_name, help="can be left out if the tenant has just one")
    connect.add_argument("--url", help="how clients reach the gateway (default PUBLIC_URL, else HOST and PORT)")
    connect.add_argument("--key-env", type=_variable, metavar="NAME", help="the environment variable with the key")

    _add_import_command(commands)

    examine = _command(commands, "doctor", _doctor, "say what works here, and what is missing")
    examine.add_argument("--json", action="store_true", help="print one JSON object")

    _command(commands, "version", _version, "print the version")
    return parser


def _add_import_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reading = _command(commands, "import", _import, "register backends from a client's configuration")
    reading.add_argument("file", metavar="FILE", help="JSON or TOML; - is stdin")
    reading.add_argument("--tenant", type=_tenant_name, default=DEFAULT_TENANT, help="default: default")
    reading.add_argument("--apply", action="store_true", help="register them; without it nothing is changed")
    reading.add_argument(
        "--env", type=_assignment, action="append", default=[], metavar="NAME[=VALUE]",
        help="a value for a placeholder or a variable; without =VALUE from the environment",
    )  # fmt: skip
    reading.add_argument("--url", help="a running gateway's address, instead of the database here")
    reading.add_argument("--key-env", type=_variable, metavar="NAME", help="with --url: the variable with an admin key")
    reading.add_argument("--json", action="store_true", help="print a JSON list")


def _add_key_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    create = _command(commands, "create", _create_key, "make a key and show it once")
    create.add_argument("--scope", action="append", required=True, help="what it allows; can be given repeatedly")
    create.add_argument("--name", type=_key_name, default="", help="what it is for")
    create.add_argument("--expires-days", type=_days, default=DEFAULT_EXPIRY_DAYS, metavar="N", help="default 90")
    create.add_argument("--json", action="store_true", help="print one JSON object")
    listing = _command(commands, "list", _list_keys, "list the keys of a tenant")
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    revoke = _command(commands, "revoke", _revoke_key, "make a key worthless")
    revoke.add_argument("id", metavar="ID", help="the key's id: its 8 characters after tlk_")
    for each in (create, listing, revoke):
        each.add_argument("--tenant", type=_tenant_name, required=True, help="whose keys")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    epilogs = {"create": _KEYS_EXAMPLES, "connect": _CONNECT_EXAMPLES, "import": _IMPORT_EXAMPLES}
    description = f"{text[:1].upper()}{text[1:]}."
    parser = commands.add_parser(name, help=text, description=description, epilog=epilogs.get(name))
    parser.formatter_class = _LAYOUT
    parser.set_defaults(run=run)
    if run is not _version:
        parser.add_argument(
            "--data-dir", metavar="DIR", help="instead of TRUNKLINE_DATA_DIR (default ./trunkline-data)"
        )
    return parser


def _tenant_name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError("a tenant's name is lower-case letters, digits and hyphens, 63 at most")
    return text


def _backend_name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError("a backend's name is lower-case letters, digits and hyphens, 63 at most")
    return text


def _variable(text: str) -> str:
    if not (text.isascii() and text.isidentifier()):
        raise argparse.ArgumentTypeError("the name of an environment variable, not its value")
    return text


def _assignment(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if not has_value and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not in the environment; give NAME=VALUE")
    return name, value if has_value else os.environ[name]


def _key_name(text: str) -> str:
    if len(text) > MAX_KEY_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a name is up to {MAX_KEY_NAME} printable characters")
    return text


def _node_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_NODES):
        raise argparse.ArgumentTypeError(f"allowed are 1 to {MAX_NODES}")
    return int(text)


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_EXPIRY_DAYS):
        raise argparse.ArgumentTypeError(f"allowed are 1 to {MAX_EXPIRY_DAYS}")
    return int(text)
