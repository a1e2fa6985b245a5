"""When a call counts as the answer to a query: soon after it, and among the next few calls."""

from app.protocol.search._words import MAX_QUERY

MAX_CALLS = 5  # after a query; later ones may be about something else
MAX_AGE_S = 120.0  # after a query


class RecentQuery:
    """The last query of one session. Whoever asks again without a call has not found anything: only the last counts."""

    def __init__(self) -> None:
        self._query = ""
        self._asked_at_s = 0.0
        self._calls_left = 0

    def asked(self, query: str, now_s: float) -> None:
        self._query, self._asked_at_s, self._calls_left = query[:MAX_QUERY], now_s, MAX_CALLS

    def called(self, now_s: float) -> str | None:
        """The query that this call followed, to be learned if the call succeeds. None if there is none."""
        if self._calls_left <= 0 or now_s - self._asked_at_s > MAX_AGE_S:
            self._query = ""
            return None
        self._calls_left -= 1
        return self._query
