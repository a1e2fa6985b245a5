"""The options of `size`."""

import argparse
import math
from collections.abc import Callable

from app.cli.usage.later import Later
from app.cli.usage.options import Commands, add_command, add_gateway_options, name_of, whole_number
from app.domain import DEFAULT_TENANT

MODES = ("exec", "fork", "shared")
_EXAMPLES = """
examples:
  trunkline size --users 400 time git everything filesystem
  trunkline size --users 400 --concurrent 30 --park-s 300 time:fork git:fork everything:shared
  trunkline size --users 400 --own crm 150 1.2 --node 16 64
  trunkline size --users 400 --from-gateway --tenant acme        what its processes use now

Backends are those that were measured for the documents, which ship with the command; --own gives the numbers of others.
A word like time:fork has its own mode. What was not measured in a mode is computed as exec: only servers in Python can
be forked. docs/sizing.md has the arithmetic.
"""


def add_size_command(commands: Commands) -> None:
    size = add_command(commands, "size", "say how much memory, how many cores and nodes so many users need", _EXAMPLES)
    size.set_defaults(run=Later("app.cli.sizing.command.size_nodes"))
    size.add_argument("--users", type=whole_number(999_999), required=True, metavar="N")
    size.add_argument(
        "--concurrent", type=_number(0.1, 100), default=50.0, metavar="PERCENT",
        help="how many of them have sessions at the busiest time; default 50",
    )  # fmt: skip
    calls_help = "calls of such a user in an hour, to all backends together; default 60"
    size.add_argument("--calls", type=_number(0, 100_000), default=60.0, metavar="N", help=calls_help)
    arrive_help = "within how many minutes all of them open their sessions; default 15"
    size.add_argument("--arrive-min", type=_number(0.1, 1440), default=15.0, metavar="N", help=arrive_help)
    size.add_argument(
        "--node", nargs=2, type=_number(0.25, 65_536), default=(8.0, 32.0), metavar=("CORES", "GIB"),
        help="of each node; default 8 32",
    )  # fmt: skip
    size.add_argument(
        "--mode", choices=MODES, default="exec", help="of backends without one of their own; default exec"
    )
    park_help = "timeouts.park_s: sessions without state give idle processes back; default: none do"
    size.add_argument("--park-s", type=_number(1, 86_400), metavar="S", help=park_help)
    size.add_argument(
        "--own", nargs=3, action="append", default=[], metavar=("NAME", "MEMORY_MB", "START_CPU_S"),
        help="another backend: memory of a process, CPU seconds of its start; can be given repeatedly",
    )  # fmt: skip
    from_help = "the backends of a tenant, as configured, with what their processes use now"
    size.add_argument("--from-gateway", action="store_true", help=from_help)
    size.add_argument("--tenant", type=name_of("tenant"), default=DEFAULT_TENANT, help="default: default")
    add_gateway_options(size)
    size.add_argument("--json", action="store_true", help="print one JSON object")
    size.add_argument("backends", nargs="*", type=_backend, metavar="BACKEND[:MODE]")


def _backend(text: str) -> tuple[str, str | None]:
    name, colon, mode = text.partition(":")
    if colon and mode not in MODES:
        raise argparse.ArgumentTypeError(f"modes are {', '.join(MODES)}")
    return name_of("backend")(name), mode or None


def _number(least: float, most: float) -> Callable[[str], float]:
    def checked(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # so NaN is refused
            raise argparse.ArgumentTypeError(f"allowed are {least:g} to {most:g}")
        return value

    return checked
