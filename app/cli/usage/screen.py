"""`trunkline --help`: what is used every day, on one screen."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DAILY: Mapping[str, Sequence[str]] = {
    "run": ("serve", "doctor"),
    "offer": ("tenants", "backends", "toolsets", "import", "plan", "apply"),
    "let in": ("keys", "connect"),
    "try": ("tools", "call"),
    "watch": ("problems", "top", "calls", "sessions"),
}
_END = """
trunkline help COMMAND    its options and examples, as COMMAND --help does
trunkline help all        every command
trunkline serve --demo    to begin: a gateway with a backend to try it on
"""


class ShowScreen(argparse.Action):
    """The option `--help` of all commands together."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(screen(parser))
        parser.exit()


def screen(parser: argparse.ArgumentParser) -> str:
    """The commands of daily use, with their help texts."""
    return "\n".join([f"usage: trunkline COMMAND ...     {parser.description}", "", *_lines(_texts(parser)), _END[:-1]])


def _lines(texts: Mapping[str, str]) -> Iterator[str]:
    for title, names in DAILY.items():
        for name in names:
            yield f"{title if name == names[0] else '':6} {name:9} {texts[name].partition(';')[0]}"


def _texts(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The help texts by command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
    return {}
