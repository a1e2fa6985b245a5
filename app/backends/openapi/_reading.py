"""What the process does that reads a document: from its standard input, to its standard output.

A process, since a hostile document can keep a processor busy or fill the memory, and a thread can be neither limited
nor ended; and since what reads it need not be imported by the node.
"""

import resource
import sys

UNFIT = 3  # exit status: the output says why
MEMORY_BYTES, CPU_S = 1 << 30, 30
MAX_WRITTEN_BYTES = 8 << 20


def main() -> None:
    """Ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_WRITTEN_BYTES, MAX_WRITTEN_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from app.protocol.openapi.api import encoded  # noqa: PLC0415 - within the limits
    from app.protocol.openapi.document import UnfitDocument  # noqa: PLC0415
    from app.protocol.openapi.making import api_of  # noqa: PLC0415
    from app.protocol.openapi.reading import read  # noqa: PLC0415

    try:
        made, status = encoded(api_of(read(sys.stdin.buffer.read()))), 0
    except UnfitDocument as problem:
        made, status = str(problem).encode("utf-8", "replace"), UNFIT
    sys.stdout.buffer.write(made)
    sys.stdout.buffer.flush()
    sys.exit(status)
