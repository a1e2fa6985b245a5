"""Options that several commands have, and the checks of their values."""

import argparse
from collections.abc import Callable
from typing import TypeAlias

from app.cli.usage.meant import Parser
from app.cli.usage.nouns import ALL
from app.domain import NAME_RULE, is_name

MAX_KEY_NAME = 200
DEFAULT_EXPIRY_DAYS = 90
MAX_ROWS = 200  # of a page over REST
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - it has no public name
Run = Callable[[argparse.Namespace], int]


def add_command(commands: Commands, name: str, text: str, epilog: str = "") -> Parser:
    """Adds a command. `text` is its line in the list of commands and the first line of its own help."""
    about, layout = f"{text[0].upper()}{text[1:]}.", argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=text, description=about, epilog=epilog, formatter_class=layout)


def add_gateway_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--url` and `--key-file`."""
    parser.add_argument("--url", help="the gateway's address (default TRUNKLINE_URL)")
    key_help = "contains the key; - is stdin (default TRUNKLINE_KEY, _KEY_FILE)"
    parser.add_argument("--key-file", metavar="FILE", help=key_help)


def add_message_options(verb: argparse.ArgumentParser) -> None:
    """Adds `--follow` and `--jsonl`."""
    verb.add_argument("--follow", action="store_true", help="go on until it ends, and print each message")
    verb.add_argument("--jsonl", metavar="FILE", help="write them to this new file, an object a line")


def name_of(kind: str) -> Callable[[str], str]:
    """For argparse: the name of a tenant or of a backend."""

    def checked(text: str) -> str:
        if not is_name(text):
            raise argparse.ArgumentTypeError(f"a {kind}'s name is {NAME_RULE}")
        return text

    return checked


def whole_number(most: int) -> Callable[[str], int]:
    """For argparse: 1 to `most`."""

    def checked(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"allowed are 1 to {most}")
        return int(text)

    return checked


def tenant_or_all(text: str) -> str:
    """For argparse: the name of a tenant, or `-`."""
    return text if text == ALL else name_of("tenant")(text)


def no_key_here(_: str) -> str:
    """For argparse: refuses `--key`. As an unknown option, or an abbreviation, it would be repeated in a message."""
    raise argparse.ArgumentTypeError(
        "every user of the machine can read arguments; set TRUNKLINE_KEY, or give --key-file, and rotate this key"
    )


def key_name(text: str) -> str:
    """For argparse: the note on a key's purpose."""
    if len(text) > MAX_KEY_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a name is up to {MAX_KEY_NAME} printable characters")
    return text
