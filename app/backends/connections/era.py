"""Era: whether a backend speaks 2026-07-28 itself, as its processes have said so far."""

PROBE_S = 3.0


class Era:
    """Of one version of one backend; another version is asked again."""

    __slots__ = ("_is_sessionless", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._is_sessionless: bool | None = None

    @property
    def is_sessionless(self) -> bool | None:
        """None: nobody has asked yet."""
        return self._is_sessionless

    def of(self, version: int) -> None:
        """A process of this version is about to be asked."""
        if version != self._version:
            self._version, self._is_sessionless = version, None

    def learn(self, *, is_sessionless: bool) -> None:
        """A process has shown which it is."""
        self._is_sessionless = is_sessionless


def probe_s(initialize_s: float) -> float:
    """How long to wait for `server/discover`: some handshake-era servers never answer it, others start slowly."""
    return max(PROBE_S, initialize_s / 10)
