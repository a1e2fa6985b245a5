"""The command `serve`."""

import argparse

from app.cli.settings import settings_from
from app.fleet import serve_nodes


def run_nodes(options: argparse.Namespace) -> int:
    """`trunkline serve`: this node, or a process for each of several."""
    settings = settings_from(options, host=options.host, port=options.port)
    if options.nodes is not None:
        return serve_nodes(settings, options.nodes, demo=options.demo)
    # Here, because the web framework takes half a second to import and no other command needs it.
    from app.serve import serve  # noqa: PLC0415

    return serve(settings, demo=options.demo, member=options.member)
