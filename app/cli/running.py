"""Carries one command out, and says in one line why it failed."""

import sys
from collections.abc import Sequence

from app.cli.parser import WRONG_USAGE, parse
from app.errors import GatewayError, InvalidRequest, SettingsError
from app.text.terminal.stdout import Stdout, give_up, opened_streams


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code.

    Raises:
        SystemExit: the usage is wrong, or help was asked for.
    """
    opened_streams()
    try:
        code = _carry_out(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except (OSError, UnicodeEncodeError) as error:
        problem = Stdout.problem(error)
        if problem is None:
            raise
        if not isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            _say(f"cannot write to stdout: {problem}")
        give_up()
        return 1
    return code


def _carry_out(words: Sequence[str]) -> int:
    for word in words:
        if not _is_text(word):
            _say(f"the argument {word!a} is not UTF-8 text")
            return WRONG_USAGE
    try:
        options = parse(words)
        code: int = options.run(options)
    except SystemExit:
        sys.stdout.flush()
        raise
    except SettingsError as error:
        _say(str(error))
        return WRONG_USAGE
    except GatewayError as error:
        _say(f"{error}" + (f" ({error.hint})" if error.hint else ""))
        return WRONG_USAGE if isinstance(error, InvalidRequest) else 1
    return code


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _say(line: str) -> None:
    print(f"trunkline: {line}", file=sys.stderr)
