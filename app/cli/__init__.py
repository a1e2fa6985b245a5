"""The command `trunkline`. Exit codes: 0 done, 1 failed, 2 wrong usage or settings."""

import sys
from collections.abc import Sequence

from app.cli.parser import make_parser
from app.errors import GatewayError, InvalidRequest, SettingsError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code."""
    options = make_parser().parse_args(arguments)
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
