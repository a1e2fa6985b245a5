"""Overdue: whether another node's lease may end before the next beat, so that its death need not wait for it. Pure."""

from collections.abc import Mapping

from app.routing.routes import BEAT_S, LEASE_S

MAX_GAP_S = 1.5 * BEAT_S  # between two reads; after a longer one nobody knows who has beaten meanwhile


class Overdue:
    """A node seals what it says with each beat anew: what reads the same as before was not renewed."""

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._heard: dict[bytes, tuple[bytes, float]] = {}  # what each has said, and the time before which it did not

    def read(self, sealed: Mapping[bytes, bytes], now: float) -> None:
        """What there is of each node whose lease runs."""
        is_close = self._read_at is not None and now - self._read_at <= MAX_GAP_S
        earliest = self._read_at if is_close and self._read_at is not None else now
        last, self._heard, self._read_at = self._heard, {}, now
        for node, said in sealed.items():
            is_old = is_close and node in last and last[node][0] == said
            self._heard[node] = last[node] if is_old else (said, earliest)

    def is_any(self, now: float) -> bool:
        """Whether a lease may end within the next beat. While nodes are read so seldom that it cannot be known: no."""
        if self._read_at is None or now - self._read_at > MAX_GAP_S:
            return False
        return any(heard_at + LEASE_S <= now + BEAT_S for _, heard_at in self._heard.values())
