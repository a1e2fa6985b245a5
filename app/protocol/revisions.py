"""Which protocol revision allows what. Versions are an enumerated set: unknown strings are never compared."""

from enum import StrEnum


class Revision(StrEnum):
    """The revisions of the handshake era, oldest first."""

    R2024_11_05 = "2024-11-05"
    R2025_03_26 = "2025-03-26"
    R2025_06_18 = "2025-06-18"
    R2025_11_25 = "2025-11-25"


HANDSHAKE = tuple(revision.value for revision in Revision)
ASSUMED = Revision.R2025_03_26  # of a request without a version header and without a session to ask


def is_handshake(version: str) -> bool:
    """Whether this names a revision with the `initialize` handshake."""
    return version in HANDSHAKE


def allows_batches(version: str) -> bool:
    """JSON-RPC batches exist in 2025-03-26 only: added there, removed in 2025-06-18."""
    return version == Revision.R2025_03_26
