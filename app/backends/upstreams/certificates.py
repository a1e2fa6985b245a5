"""The certificates in a backend's `connect`: what is read of them, and which expire soon."""

from collections.abc import Iterator
from datetime import datetime

from app.domain.resources.backends import Connect
from app.text.pem import Certificate, PemRefused, certificates_in


def certificates_of(connect: Connect) -> Iterator[tuple[str, Certificate]]:
    """Each with the member that has it."""
    for name in ("ca", "certificate"):
        try:
            yield from ((name, each) for each in certificates_in(getattr(connect, name) or ""))
        except PemRefused:  # another release has taken it: the backend is shown all the same
            continue


def expiring(connect: Connect, now: datetime) -> list[str]:
    """Which have expired or soon will, in words."""
    found = (each.note(f"`connect.{name}`", now) for name, each in certificates_of(connect))
    return [note for note in found if note is not None]
