"""A parser that says what somebody who mistyped a command or an option probably meant."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from app.text.meant import did_you_mean

MOST_NAMED = 15  # commands in an error


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


class Parser(argparse.ArgumentParser):
    """Like `argparse`'s, but for its errors."""

    @property
    def commands(self) -> dict[str, "Parser"]:
        """The commands below this one, by name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
                return dict(action.choices)
        return {}

    def below(self, words: Sequence[str]) -> "Parser":
        """The parser of the command that the first words name: the last one there is."""
        known = self.commands
        return known[words[0]].below(words[1:]) if words and words[0] in known else self

    def require_command_first(self, words: Sequence[str]) -> None:
        """Ends the process if an option stands before the command that it may be for."""
        if words and self.commands:
            if words[0].startswith("-") and words[0] not in self._option_string_actions:
                option = words[0].partition("=")[0]
                self.error(f"{option} stands before the command: write `{self.prog} COMMAND {option} …`")
            if words[0] in self.commands:
                self.commands[words[0]].require_command_first(words[1:])

    def refuse(self, left: Sequence[str]) -> NoReturn:
        """Ends the process: there are words that mean nothing here."""
        options = [each for each in self._option_string_actions if each.startswith("--")]
        unknown = next((each.partition("=")[0] for each in left if each.startswith("-")), "")
        self.error(f"unrecognized arguments: {' '.join(left)}{did_you_mean(unknown, options)}")

    def error(self, message: str) -> NoReturn:
        """Ends the process. Where a command is missing it lists those that there are."""
        if message.endswith("are required: COMMAND"):
            are_few = len(self.commands) < MOST_NAMED
            message = f"which command? {f'There are {_list(self.commands)}' if are_few else 'See `trunkline help`'}"
        super().error(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = self.commands
        if isinstance(action, argparse._SubParsersAction) and value not in known:  # noqa: SLF001
            there_are = did_you_mean(value, known) or (
                f"; there are {_list(known)}" if len(known) < MOST_NAMED else "; see `trunkline help all`"
            )
            raise argparse.ArgumentError(None, f"there is no command {value!a}{there_are}")
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, error.message + near) from None
