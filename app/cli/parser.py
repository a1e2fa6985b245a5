"""The commands, their options and their help texts."""

import argparse
import os
from collections.abc import Sequence

from app import __version__
from app.cli.files.parser import add_file_commands
from app.cli.resource_parser import add_resource_commands, is_without_dashes, split_command
from app.cli.usage.later import HereOrThere, Later
from app.cli.usage.meant import Parser
from app.cli.usage.nouns import CALL_GROUPS, CALLS, CLIENTS, DEFAULT_KEY_ENV, SORTS, VIEWS
from app.cli.usage.options import (
    MAX_ROWS,
    Commands,
    add_command,
    add_gateway_options,
    add_message_options,
    name_of,
    tenant_or_all,
    whole_number,
)
from app.cli.usage.screen import ShowScreen, screen
from app.domain import DEFAULT_TENANT

WRONG_USAGE = 2
MAX_NODES = 64  # of one command: more than the cores of most machines

_EXAMPLES = """
examples:
  trunkline serve                                  one node on http://127.0.0.1:8080
  trunkline serve --demo                           with a backend to try it on
  trunkline serve --nodes 4                        four nodes that share the port, for four cores
  trunkline keys create --tenant default --scope platform:admin
                                                   the first administrator's key
  trunkline keys create --tenant acme --scope mcp:connect --expires-days 30
  trunkline keys list --tenant acme
  trunkline backends list --tenant acme            over REST: set TRUNKLINE_URL and TRUNKLINE_KEY
  trunkline connect cursor --backend time          the configuration for an MCP client
  trunkline import ~/.cursor/mcp.json              a dry run; --apply registers the backends
  trunkline apply -f gateway.yaml                  make a gateway what a file says; see also plan and export
  trunkline top                                    memory, CPU and calls by process, live
  trunkline problems                               what is wrong now, and what to do
  trunkline calls --tenant acme outcome=error      who called what, and how it ended
  trunkline doctor                                 what works on this machine

Settings are environment variables TRUNKLINE_<NAME>, for example TRUNKLINE_DATA_DIR; see docs/settings.md.
"""
_INSPECT = """
examples:
  trunkline inspect 1f0c7a52d3e4 --tenant acme --reason "ticket 4711" --follow
  trunkline inspect 1f0c7a52d3e4 --tenant acme --reason "ticket 4711" --payloads --minutes 5 --jsonl seen.jsonl
  trunkline inspect --backend time --tenant acme --reason "its handshake fails" --payloads --follow
With --follow or --jsonl it ends at Ctrl-C; else see `trunkline inspections`.
"""
_CALLS = """
Who called what, when, how long it took and how it ended; never arguments or results. Each node remembers the last ones.

examples:
  trunkline calls --tenant acme
  trunkline calls --tenant acme outcome=error min_ms=500 backend=time
  trunkline calls --tenant acme request_id=7f3a
  trunkline calls --tenant acme --by tool
  trunkline calls --tenant - --client cursor min_ms=1000
  trunkline calls --tenant acme --follow subject=alice
"""
_TOOLS = """
examples:
  trunkline tools time --tenant acme
  trunkline tools time convert_time --tenant acme
  trunkline call time convert_time source_timezone=UTC time=12:00 target_timezone=Asia/Tokyo --tenant acme
  trunkline call notes add --tenant acme text=@note.txt tags=new tags=work stars=3 options='{"pin": true}'

A value is read as the tool's schema says: text, a number, true, false, or JSON. A list may be given item by item; @FILE
is the content of a file (@- of stdin), and @@ begins a text with @. The key (TRUNKLINE_KEY, TRUNKLINE_KEY_FILE or
--key-file) needs the scope mcp:connect in the tenant. Calls of one key go to the same process, like those of a client
of 2026-07-28.
"""
_TOP_EXAMPLES = """
examples:
  trunkline top                                    all tenants, live; keys change view and order, q quits
  trunkline top --tenant acme --view sessions --sort calls
  trunkline top --once --json --rows 5             for scripts

This command uses the REST API of a gateway: TRUNKLINE_URL or --url is its address; TRUNKLINE_KEY, TRUNKLINE_KEY_FILE or
--key-file gives the key (never an argument: every user of the machine can read those). Where stdout is no terminal or
the terminal is too simple, each update is printed below the one before. Memory and CPU time are measured every two
seconds while a client asks for them, else every ten.
"""
_CONNECT_EXAMPLES = f"""
clients: {", ".join(CLIENTS)}

  trunkline connect cursor --backend time --backend notes --write    into ~/.cursor/mcp.json
  trunkline connect vscode --backend time --write                    into .vscode/mcp.json of this project
  trunkline connect cline --backend time --write --key-env NAME      with the key from the variable NAME in the file

Without --write the configuration is printed on stdout, and where to put it on stderr. --write keeps everything else in
the file (other servers, members, comments), replaces a server of the same name, and leaves a copy FILE.TIME.bak.

Where the client can, it reads the key from the environment variable NAME (default {DEFAULT_KEY_ENV}). For those that
cannot (claude-desktop, cline), --key-env NAME writes the value of NAME into the output.
"""
_IMPORT_EXAMPLES = """
formats: mcpServers (Claude, Cursor, Windsurf, Cline, Gemini and most others), servers (VS Code), mcp (OpenCode),
mcp_servers (Codex, TOML), context_servers (Zed), extensions (Goose), server.json of the MCP registry, and the
manifest.json of a bundle (.mcpb). All that a file has are read.

  trunkline import mcp.json                              dry run: one line per server
  trunkline import mcp.json --env GITHUB_TOKEN --apply   takes the token from the environment
  trunkline import mcp.json --apply --url https://gw.example.com --key-env ADMIN_KEY

Placeholders like ${GITHUB_TOKEN} are never stored: give the value with --env. A registered command runs in a sandbox
without a network: read the dry run first, then give it what it needs (trunkline backends set NAME sandbox.network=web).
Exit code 1 if a server cannot be imported.
"""


def make_parser() -> Parser:
    """The parser of all commands; `run` of the parsed options is the function that carries the command out."""
    layout, about = argparse.RawDescriptionHelpFormatter, "A multi-tenant remote MCP gateway."
    parser = Parser(prog="trunkline", description=about, epilog=_EXAMPLES, formatter_class=layout, add_help=False)
    parser.add_argument("-h", "--help", action=ShowScreen, nargs=0, help="show the commands of daily use")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    _add_machine_commands(commands)
    add_resource_commands(commands)
    add_file_commands(commands)
    _add_top_command(commands)
    _add_problems_command(commands)
    _add_calls_command(commands)
    _add_inspect_command(commands)
    _add_tool_commands(commands)
    _add_connect_command(commands)
    _add_import_command(commands)
    helped = add_command(commands, "help", "show the commands, or the options of one")
    helped.add_argument("words", nargs="*", metavar="COMMAND", help="all, or a command")
    helped.set_defaults(run=Later("app.cli.parser.show_help"))
    add_command(commands, "version", "print the version").set_defaults(run=Later("app.cli.parser.print_version"))
    return parser


def _add_machine_commands(commands: Commands) -> None:
    """Those that use the settings of this machine."""
    serve = _command(commands, "serve", "app.cli.node.run_nodes", "run one node, or several")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on; 0 takes a free one (default 8080)")
    serve.add_argument("--demo", action="store_true", help="add a demo backend and print a key for it")
    several = serve.add_mutually_exclusive_group()
    several_help = f"run N nodes that share the port, at most {MAX_NODES}; needs TRUNKLINE_REDIS_URL"
    several.add_argument("--nodes", type=whole_number(MAX_NODES), metavar="N", help=several_help)
    several.add_argument("--member", type=int, help=argparse.SUPPRESS)  # how --nodes starts each of them

    text = "create the database, or bring its schema up to date"
    migrate = _command(commands, "migrate", "app.cli.node.migrate_database", text)
    migrate.add_argument("--check", action="store_true", help="change nothing; exit code 1 if it is not up to date")

    secret_key = add_command(commands, "secret-key", "check or change which SECRET_KEY the database belongs to")
    verbs = secret_key.add_subparsers(required=True, metavar="COMMAND")
    text = "say whether the database belongs to SECRET_KEY; exit code 1 if not"
    _command(verbs, "check", "app.cli.keys.check_secret_key", text)
    _command(verbs, "accept", "app.cli.keys.accept_secret_key", "record that SECRET_KEY was changed on purpose")

    text = "show what works on this machine, and what is missing"
    doctor = _command(commands, "doctor", "app.cli.doctor.examination.examine_machine", text)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")

    text = "list the homes of the tenants' backends on this machine"
    homes = _command(commands, "homes", "app.cli.homes.show_homes", text)
    remove_help = "remove this home, by its name: that of a deleted tenant, or one that lasts"
    homes.add_argument("--remove", action="append", default=[], metavar="HOME", help=remove_help)
    homes.add_argument("--json", action="store_true", help="print a JSON list")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. Wrong usage ends the process."""
    try:
        return _parsed(words)
    except SystemExit as ended:
        if ended.code == WRONG_USAGE and words[:1] == ["apply"] and "--check" in words:
            raise SystemExit(1) from None  # 2 would say that something differs
        raise


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    words, command_line = split_command(words)
    parser.require_command_first(words)
    options, left = parser.parse_known_args(words)
    if is_without_dashes(words, [*getattr(options, "members", ()), *left], command_line):
        parser.below(words).error("a command stands behind `--`: backends create NAME -- COMMAND ARGUMENTS")
    if left:
        # argparse takes NAME=VALUE words only where they stand together; options may stand between ours.
        if not getattr(options, "takes_members", False) or any(word.startswith("-") for word in left):
            parser.below(words).refuse(left)
        options.members.extend(left)
    options.command_line = command_line
    return options


def _add_top_command(commands: Commands) -> None:
    top = add_command(commands, "top", "show memory, CPU and calls by process, session or tenant, live", _TOP_EXAMPLES)
    top.set_defaults(run=Later("app.cli.top.top.show_top"))
    add_gateway_options(top)
    top.add_argument("--tenant", type=name_of("tenant"), help="only this one; without it the key needs platform:admin")
    top.add_argument("--view", choices=VIEWS, default=VIEWS[0], help="default: processes")
    top.add_argument("--sort", choices=SORTS, default=SORTS[0], help="largest first; default: memory")
    top.add_argument("--interval", type=_interval, default=2.0, metavar="S", help="seconds between updates; default 2")
    top.add_argument("--rows", type=whole_number(MAX_ROWS), metavar="N", help="at most N; default: what fits, or 20")
    top.add_argument("--once", action="store_true", help="print one update and exit")
    top.add_argument("--json", action="store_true", help="print each update as one line of JSON")


def _add_calls_command(commands: Commands) -> None:
    calls = add_command(commands, "calls", "show the last calls of a tenant, or of all", _CALLS)
    add_gateway_options(calls)
    calls.add_argument("--json", action="store_true", help="JSON; with --follow an object a line")
    calls.add_argument("--tenant", type=tenant_or_all, default=DEFAULT_TENANT, help="default: default; - is all")
    calls.add_argument("--client", metavar="NAME", help="only of clients with this name, as `initialize` gives it")
    calls.add_argument("--by", choices=CALL_GROUPS, help="sums by what the calls have in common")
    calls.add_argument("--follow", action="store_true", help="go on, and print each call when it is over")
    calls.add_argument("--limit", type=whole_number(10_000), default=50, metavar="N", help="default 50")
    calls.add_argument("members", nargs="*", metavar="NAME=VALUE", help="filters, as in the REST API")
    calls.set_defaults(run=Later("app.cli.top.calls.show_calls"), resource=CALLS)


def _add_inspect_command(commands: Commands) -> None:
    inspect = add_command(commands, "inspect", "look at the messages of sessions from now on", _INSPECT)
    add_gateway_options(inspect)
    inspect.add_argument("session", metavar="SESSION", nargs="?", help="its id in `sessions list`")
    next_help = "instead of SESSION: the next sessions of a backend or toolset, from `initialize` on"
    inspect.add_argument("--backend", metavar="NAME", help=next_help)
    inspect.add_argument("--tenant", type=name_of("tenant"), default=DEFAULT_TENANT, help="default: default")
    inspect.add_argument("--reason", required=True, help="why; the tenant sees it")
    inspect.add_argument("--payloads", action="store_true", help="also what the messages say, secrets masked")
    inspect.add_argument("--minutes", type=whole_number(60), default=15, metavar="N", help="default 15, at most 60")
    inspect.add_argument("--json", action="store_true", help="JSON; with --follow an object a line")
    add_message_options(inspect)
    inspect.set_defaults(run=Later("app.cli.top.traffic.inspect_session"))


def _add_problems_command(commands: Commands) -> None:
    problems = add_command(commands, "problems", "say what is wrong now, and what to do; exit code 1 if there is some")
    problems.set_defaults(run=Later("app.cli.top.problems.show_problems"))
    add_gateway_options(problems)
    problems.add_argument(
        "--tenant", type=name_of("tenant"), help="only of this one; else the key needs platform:admin"
    )
    problems.add_argument("--json", action="store_true", help="print a JSON list")


def _add_tool_commands(commands: Commands) -> None:
    tools = add_command(commands, "tools", "list the tools of a backend or toolset, with their arguments", _TOOLS)
    tools.set_defaults(run=Later("app.cli.trying.commands.list_tools"))
    call = add_command(commands, "call", "call a tool; exit code 1 if it fails", _TOOLS)
    call.set_defaults(run=Later("app.cli.trying.commands.call_tool"), takes_members=True)
    for each in (tools, call):
        add_gateway_options(each)
        each.add_argument("--tenant", type=name_of("tenant"), default=DEFAULT_TENANT, help="default: default")
        each.add_argument("backend", type=name_of("backend"), metavar="BACKEND", help="a backend or a toolset")
    tools.add_argument("--json", action="store_true", help="print the definitions as JSON")
    tools.add_argument("tool", nargs="?", metavar="TOOL", help="all of this one")
    call.add_argument("--json", action="store_true", help="print the result as JSON")
    call.add_argument("tool", metavar="TOOL", help="its name in the list")
    call.add_argument("members", nargs="*", default=[], metavar="NAME=VALUE", help="its arguments")


def _add_connect_command(commands: Commands) -> None:
    text = "print the configuration for an MCP client, or write it"
    connect = _command(commands, "connect", "app.cli.connect.configure_client", text, _CONNECT_EXAMPLES)
    connect.add_argument("client", metavar="CLIENT", choices=CLIENTS, help=", ".join(CLIENTS))
    connect.add_argument("--tenant", type=name_of("tenant"), default=DEFAULT_TENANT, help="default: default")
    connect.add_argument(
        "--backend", type=name_of("backend"), action="append", metavar="BACKEND",
        help="can be given repeatedly; can be left out if the tenant has just one",
    )  # fmt: skip
    connect.add_argument(
        "--write", nargs="?", const="", metavar="FILE",
        help="merge it into the client's configuration file (or into FILE), and keep a copy of the old file",
    )  # fmt: skip
    connect.add_argument(
        "--url",
        help="how clients reach the gateway (default: as the gateway of TRUNKLINE_URL says; without that PUBLIC_URL of "
        "this machine, else HOST and PORT)",
    )
    connect.add_argument("--key-env", type=_variable, metavar="NAME", help="the environment variable with the key")


def _add_import_command(commands: Commands) -> None:
    text = "register backends from a client's configuration"
    imported = _command(commands, "import", "app.cli.importing_here.import_here", text, _IMPORT_EXAMPLES)
    here, there = imported.get_default("run"), Later("app.cli.importing.import_over_rest")
    imported.set_defaults(run=HereOrThere(here, there))
    imported.add_argument("file", metavar="FILE", help="JSON, TOML or YAML; - is stdin")
    imported.add_argument("--tenant", type=name_of("tenant"), default=DEFAULT_TENANT, help="default: default")
    imported.add_argument("--apply", action="store_true", help="register them; without it nothing is changed")
    imported.add_argument(
        "--env", type=_assignment, action="append", default=[], metavar="NAME[=VALUE]",
        help="a value for a placeholder or a variable; without =VALUE from the environment",
    )  # fmt: skip
    imported.add_argument("--url", help="a gateway's address, instead of the database here (default TRUNKLINE_URL)")
    key = imported.add_mutually_exclusive_group()
    key.add_argument("--key-env", type=_variable, metavar="NAME", help="the variable with a key, if not TRUNKLINE_KEY")
    key.add_argument("--key-file", metavar="FILE", help="contains the key; - is stdin")
    imported.add_argument("--json", action="store_true", help="print a JSON list")


def _command(commands: Commands, name: str, run: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
    """Adds a command that uses the settings of this machine. `run` is the full name of a function."""
    parser = add_command(commands, name, text, epilog)
    parser.set_defaults(run=Later(run))
    data_dir_help = "instead of TRUNKLINE_DATA_DIR (default ~/.local/share/trunkline, or ./trunkline-data if it exists)"
    parser.add_argument("--data-dir", metavar="DIR", help=data_dir_help)
    return parser


def show_help(options: argparse.Namespace) -> int:
    """`trunkline help`."""
    parser = make_parser()
    if options.words:
        is_all = options.words == ["all"]
        parser.print_help() if is_all else parser.parse_args([*options.words, "--help"])
    else:
        print(screen(parser))
    return 0


def print_version(_: argparse.Namespace) -> int:
    """`trunkline version`."""
    print(f"trunkline {__version__}")
    return 0


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("allowed are 0.5 to 3600 seconds")
    return seconds


def _variable(text: str) -> str:
    if not (text.isascii() and text.isidentifier()):
        raise argparse.ArgumentTypeError("the name of an environment variable, not its value")
    return text


def _assignment(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if not has_value and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not in the environment; give NAME=VALUE")
    return name, value if has_value else os.environ[name]
