"""The commands and their options: what can be typed, what is refused at once, and the help."""

import argparse
import os
from collections.abc import Callable

from app import __version__
from app.cli.connect import print_configuration
from app.cli.doctor import examine_machine
from app.cli.importing import import_servers
from app.cli.keys import create_key, list_keys, revoke_key
from app.cli.migrate import migrate_database
from app.cli.serve import run_nodes
from app.connect import CLIENTS, DEFAULT_KEY_ENV
from app.domain import DEFAULT_TENANT, is_name

DEFAULT_EXPIRY_DAYS = 90
MAX_EXPIRY_DAYS = 3650
MAX_KEY_NAME = 200
MAX_NODES = 64  # of one command: more than the cores of most machines
_LAYOUT = argparse.RawDescriptionHelpFormatter

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


def make_parser() -> argparse.ArgumentParser:
    """Every command with its options; what a command does is `run` of the parsed options."""
    parser = argparse.ArgumentParser(
        prog="trunkline", description="A multi-tenant remote MCP gateway.", epilog=_EXAMPLES, formatter_class=_LAYOUT
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = _command(commands, "serve", run_nodes, "run one node, or several")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on; 0 takes a free one (default 8080)")
    serve.add_argument("--demo", action="store_true", help="add a demo backend and print a key for it")
    several = serve.add_mutually_exclusive_group()
    several.add_argument(
        "--nodes", type=_node_count, metavar="N", help="run N nodes that share the port; needs TRUNKLINE_REDIS_URL"
    )
    several.add_argument("--member", type=int, help=argparse.SUPPRESS)  # how --nodes starts each of them

    migrate = _command(commands, "migrate", migrate_database, "bring the database up to date")
    migrate.add_argument("--check", action="store_true", help="only look; exit code 1 if it is not up to date")

    keys = commands.add_parser(
        "keys", help="make, list and revoke API keys", epilog=_KEYS_EXAMPLES, formatter_class=_LAYOUT
    )
    _add_key_commands(keys.add_subparsers(required=True, metavar="COMMAND"))

    connect = _command(commands, "connect", print_configuration, "print the configuration of a client")
    connect.add_argument("client", metavar="CLIENT", choices=[*CLIENTS], help=", ".join(CLIENTS))
    connect.add_argument("--tenant", type=_tenant_name, default=DEFAULT_TENANT, help="default: default")
    connect.add_argument("--backend", type=_backend_name, help="can be left out if the tenant has just one")
    connect.add_argument("--url", help="how clients reach the gateway (default PUBLIC_URL, else HOST and PORT)")
    connect.add_argument("--key-env", type=_variable, metavar="NAME", help="the environment variable with the key")

    _add_import_command(commands)

    examine = _command(commands, "doctor", examine_machine, "say what works here, and what is missing")
    examine.add_argument("--json", action="store_true", help="print one JSON object")

    _command(commands, "version", _version, "print the version")
    return parser


def _add_import_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reading = _command(commands, "import", import_servers, "register backends from a client's configuration")
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
    create = _command(commands, "create", create_key, "make a key and show it once")
    create.add_argument("--scope", action="append", required=True, help="what it allows; can be given repeatedly")
    create.add_argument("--name", type=_key_name, default="", help="what it is for")
    create.add_argument("--expires-days", type=_days, default=DEFAULT_EXPIRY_DAYS, metavar="N", help="default 90")
    create.add_argument("--json", action="store_true", help="print one JSON object")
    listing = _command(commands, "list", list_keys, "list the keys of a tenant")
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    revoke = _command(commands, "revoke", revoke_key, "make a key worthless")
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


def _version(_: argparse.Namespace) -> int:
    print(f"trunkline {__version__}")
    return 0


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
