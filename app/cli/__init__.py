"""The command `trunkline`. Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 130 interrupted."""

import os
import sys
from collections.abc import Sequence

from app.cli.parser import make_parser, parse
from app.errors import GatewayError, InvalidRequest, SettingsError

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except SettingsError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        return 2
    except GatewayError as error:
        print(f"trunkline: {error}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does; Python must not report it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
