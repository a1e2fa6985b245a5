"""The commands and their options: what can be typed, what is refused at once, and the help."""

import argparse
import os
from collections.abc import Callable, Sequence

from app import __version__
from app.cli.connect import configure_client
from app.cli.homes import show_homes
from app.cli.importing import import_servers
from app.cli.keys import accept_secret_key, check_secret_key
from app.cli.node import examine_machine, migrate_database, run_nodes
from app.cli.resource_parser import add_resource_commands, split_command, tenant_name
from app.cli.top.top import MAX_ROWS, SORTS, VIEWS, show_top
from app.client_config import CLIENTS, DEFAULT_KEY_ENV
from app.domain import DEFAULT_TENANT, is_name

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
  trunkline backends list --tenant acme            over REST: TRUNKLINE_URL and TRUNKLINE_KEY say where
  trunkline connect cursor --backend time          what to put into a client
  trunkline import ~/.cursor/mcp.json              which backends that file would give; --apply makes them
  trunkline top                                    who takes how much of the machine, live
  trunkline doctor                                 what works on this machine

Settings are environment variables TRUNKLINE_<NAME>, for example TRUNKLINE_DATA_DIR; see docs/settings.md.
"""
_TOP_EXAMPLES = """
examples:
  trunkline top                                    all tenants, live; keys change view and order, q quits
  trunkline top --tenant acme --view sessions --sort calls
  trunkline top --once --json --rows 5             for scripts

The gateway is asked over REST: TRUNKLINE_URL or --url says where it is, TRUNKLINE_KEY, TRUNKLINE_KEY_FILE or --key-file
has the key (never an argument: every user of the machine can read those). Without a terminal that can be drawn on, one
look is printed below the other. Memory and processor time are measured every two seconds while somebody looks.
"""
_CONNECT_EXAMPLES = f"""
clients: {", ".join(CLIENTS)}

  trunkline connect cursor --backend time --backend notes --write    into ~/.cursor/mcp.json
  trunkline connect vscode --backend time --write                    into .vscode/mcp.json of this project
  trunkline connect cline --backend time --write --key-env NAME       the key that is in NAME goes into the file

Without --write the configuration alone is on stdout, and where it goes on stderr. --write keeps what else is in the
file (other servers, members, comments), replaces a server of the same name, and leaves a copy FILE.TIME.bak beside it.

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

    migrate = _command(commands, "migrate", migrate_database, "bring the database up to date, or make it")
    migrate.add_argument("--check", action="store_true", help="only look; exit code 1 if it is not up to date")

    secret_key = commands.add_parser("secret-key", help="whether the database was made with this SECRET_KEY")
    _add_secret_key_commands(secret_key.add_subparsers(required=True, metavar="COMMAND"))

    add_resource_commands(commands)

    _add_top_command(commands)

    connect = _command(commands, "connect", configure_client, "print the configuration of a client, or write it")
    connect.add_argument("client", metavar="CLIENT", choices=[*CLIENTS], help=", ".join(CLIENTS))
    connect.add_argument("--tenant", type=tenant_name, default=DEFAULT_TENANT, help="default: default")
    connect.add_argument(
        "--backend", type=_backend_name, action="append", metavar="BACKEND",
        help="can be given repeatedly; can be left out if the tenant has just one",
    )  # fmt: skip
    connect.add_argument(
        "--write", nargs="?", const="", metavar="FILE",
        help="merge it into the client's configuration file (or into FILE), with a copy of what was there",
    )  # fmt: skip
    connect.add_argument("--url", help="how clients reach the gateway (default PUBLIC_URL, else HOST and PORT)")
    connect.add_argument("--key-env", type=_variable, metavar="NAME", help="the environment variable with the key")

    _add_import_command(commands)

    examine = _command(commands, "doctor", examine_machine, "say what works here, and what is missing")
    examine.add_argument("--json", action="store_true", help="print one JSON object")

    homes = _command(commands, "homes", show_homes, "list the homes of the tenants' backends on this machine")
    homes.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="HOME",
        help="remove this home of a deleted tenant, by its name",
    )
    homes.add_argument("--json", action="store_true", help="print a JSON list")

    _command(commands, "version", _version, "print the version")
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; wrong usage ends the process."""
    parser = make_parser()
    words, command_line = split_command(words)
    options, left = parser.parse_known_args(words)
    # argparse takes `NAME=VALUE…` only in one piece; between them may stand options.
    takes_them = getattr(options, "takes_members", False) and not any(word.startswith("-") for word in left)
    if left and not takes_them:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        options.members = [*options.members, *left]
    options.command_line = command_line
    return options


def _add_top_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "show who takes how much of the machine, live"
    top = commands.add_parser("top", help=text, description=f"{text.capitalize()}.", epilog=_TOP_EXAMPLES)
    top.formatter_class = _LAYOUT
    top.set_defaults(run=show_top)
    top.add_argument("--url", help="the gateway's address (default TRUNKLINE_URL)")
    top.add_argument("--key-file", metavar="FILE", help="holds the key; - is stdin (default TRUNKLINE_KEY, _KEY_FILE)")
    top.add_argument("--tenant", type=tenant_name, help="only this one; without it the key needs platform:admin")
    top.add_argument("--view", choices=VIEWS, default=VIEWS[0], help="default: processes")
    top.add_argument("--sort", choices=SORTS, default=SORTS[0], help="the most first; default: memory")
    top.add_argument("--interval", type=_interval, default=2.0, metavar="S", help="between two looks; default 2")
    top.add_argument("--rows", type=_rows, metavar="N", help="at most so many; default: what fits, or 20")
    top.add_argument("--once", action="store_true", help="look once, and print it")
    top.add_argument("--json", action="store_true", help="print one JSON object a line for each look")


def _add_import_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reading = _command(commands, "import", import_servers, "register backends from a client's configuration")
    reading.add_argument("file", metavar="FILE", help="JSON or TOML; - is stdin")
    reading.add_argument("--tenant", type=tenant_name, default=DEFAULT_TENANT, help="default: default")
    reading.add_argument("--apply", action="store_true", help="register them; without it nothing is changed")
    reading.add_argument(
        "--env", type=_assignment, action="append", default=[], metavar="NAME[=VALUE]",
        help="a value for a placeholder or a variable; without =VALUE from the environment",
    )  # fmt: skip
    reading.add_argument("--url", help="a gateway's address, instead of the database here (default TRUNKLINE_URL)")
    key = reading.add_mutually_exclusive_group()
    key.add_argument("--key-env", type=_variable, metavar="NAME", help="the variable with a key, if not TRUNKLINE_KEY")
    key.add_argument("--key-file", metavar="FILE", help="holds the key; - is stdin")
    reading.add_argument("--json", action="store_true", help="print a JSON list")


def _add_secret_key_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _command(commands, "check", check_secret_key, "say whether the database was made with it; exit code 1 if not")
    _command(commands, "accept", accept_secret_key, "tell the database that SECRET_KEY was changed on purpose")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    epilogs = {"connect": _CONNECT_EXAMPLES, "import": _IMPORT_EXAMPLES}
    description = f"{text[:1].upper()}{text[1:]}."
    parser = commands.add_parser(name, help=text, description=description, epilog=epilogs.get(name))
    parser.formatter_class = _LAYOUT
    parser.set_defaults(run=run)
    if run is not _version:
        parser.add_argument(
            "--data-dir",
            metavar="DIR",
            help="instead of TRUNKLINE_DATA_DIR (default ~/.local/share/trunkline, or ./trunkline-data if it is there)",
        )
    return parser


def _version(_: argparse.Namespace) -> int:
    print(f"trunkline {__version__}")
    return 0


def _backend_name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError("a backend's name is lower-case letters, digits and hyphens, 63 at most")
    return text


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("allowed are 0.5 to 3600 seconds")
    return seconds


def _rows(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_ROWS):
        raise argparse.ArgumentTypeError(f"allowed are 1 to {MAX_ROWS}")
    return int(text)


def _variable(text: str) -> str:
    if not (text.isascii() and text.isidentifier()):
        raise argparse.ArgumentTypeError("the name of an environment variable, not its value")
    return text


def _assignment(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if not has_value and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not in the environment; give NAME=VALUE")
    return name, value if has_value else os.environ[name]


def _node_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_NODES):
        raise argparse.ArgumentTypeError(f"allowed are 1 to {MAX_NODES}")
    return int(text)
