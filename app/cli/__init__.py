"""The command `trunkline`. Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 130 interrupted."""

from collections.abc import Sequence

from app.cli.usage.later import INTERRUPTED, ending_at_ctrl_c

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code."""
    with ending_at_ctrl_c():
        from app.cli.running import run  # noqa: PLC0415
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
