"""Which protocol revision allows what. Versions are never compared by order of strings: clients may send any."""

from enum import StrEnum


class Revision(StrEnum):
    """The revisions of the handshake era, oldest first."""

    R2024_11_05 = "2024-11-05"
    R2025_03_26 = "2025-03-26"
    R2025_06_18 = "2025-06-18"
    R2025_11_25 = "2025-11-25"


HANDSHAKE = tuple(revision.value for revision in Revision)
ASSUMED = Revision.R2025_03_26  # if neither the request nor its session tells the version


def is_handshake(version: str) -> bool:
    return version in HANDSHAKE


def allows_batches(version: str) -> bool:
    """Batches were added in 2025-03-26 and removed in 2025-06-18."""
    return version == Revision.R2025_03_26
