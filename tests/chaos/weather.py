"""What the faults of a history excuse: which part was harmed when, and what could not be known or kept then."""

from tests.chaos.history import FOREVER, Fault, History, Initialised, Revoked

SLACK_S = 1.0  # a busy machine
KNOWN_S = 1.0 + SLACK_S  # a revocation, over Redis
FOUND_S = 2.0 + SLACK_S  # by whoever looks into the database
REMEMBERED_S = 30.0 + SLACK_S  # by whoever can do neither
RECOVERS_S = 3.0  # breaker, reconnection, the next beat
FORGETS_S = 15.0  # how long before the death of a node an empty Redis may still lack what it had
LEASE_S = 4.0  # a node that is away for less keeps its sessions


class Weather:
    """Answers questions about faults."""

    def __init__(self, history: History) -> None:
        self._faults = sorted(history.of(Fault), key=lambda each: each.began)
        self._places = {each.process: each.place for each in history.of(Initialised)}

    def place_of(self, process: str) -> int:
        """Where the node stood that has started it."""
        return self._places.get(process, -1)

    def harmed(self, part: str, place: int | None, began: float, ended: float) -> bool:
        """Whether this part (of any node, if None) was under a fault at some time between the two."""
        return any(
            each.part == part and place in (None, each.place) and each.began < ended and each.ended > began
            for each in self._faults
        )

    # --- revocations

    def heard_of(self, revoked: Revoked, place: int | None) -> float:
        """When the node there (every node, if None) must know of it."""
        looking = self._of_database(place)  # which a notice only hastens
        notice = self._of_redis(revoked.node), self._of_redis(place), looking
        by_notice = self._undisturbed(revoked.answered, KNOWN_S, *notice)
        by_looking = self._undisturbed(revoked.answered, FOUND_S, looking)
        return min(by_notice, by_looking, revoked.answered + REMEMBERED_S)

    def _undisturbed(self, since: float, seconds: float, *parts: list[Fault]) -> float:
        """The end of the first so many seconds without any of these faults."""
        at = since
        for fault in sorted((each for part in parts for each in part), key=lambda each: each.began):
            if fault.began < at + seconds and fault.ended + RECOVERS_S > at:
                at = max(at, fault.ended + RECOVERS_S)
        return at + seconds

    def _of_redis(self, place: int | None) -> list[Fault]:
        return self._of(place, "redis", "redis-line", "node")

    def _of_database(self, place: int | None) -> list[Fault]:
        return self._of(place, "database-line", "node")

    def _of(self, place: int | None, *parts: str) -> list[Fault]:
        return [each for each in self._faults if each.part in parts and (place is None or each.place in (place, -1))]

    # --- what a death takes along

    def away_after(self, place: int, at: float) -> float | None:
        """When the node there next died, left, or stood still for so long that others may have taken its sessions."""
        for fault in self._faults:
            short = fault.what == "pause" and fault.ended - fault.began < LEASE_S
            if (fault.part, fault.place) == ("node", place) and fault.ended > at and not short:
                return fault.began
        for fault in self._of_redis(place):  # without Redis for a lease it is as good as dead for the others
            if fault.part != "node" and fault.ended > at and fault.ended - fault.began > LEASE_S - SLACK_S:
                return fault.began
        return None

    def was_written(self, place: int, sent_at: float, died: float) -> bool:
        """Whether the node could reach Redis in its last seconds, and Redis has forgotten nothing since."""
        before = died - RECOVERS_S
        reachable = not any(
            each.began < died and each.ended + RECOVERS_S > before
            for each in self._of_redis(place)
            if each.part != "node"
        )
        return reachable and not self.forgot(before, FOREVER)

    def was_never_written(self, place: int, opened_at: float) -> bool:
        """Whether the node could not write a session down between opening it and its own end: its client gets an answer
        after half a second all the same."""
        died = self.away_after(place, opened_at)
        disturbing = [each for each in self._of_redis(place) if each.part != "node"]
        return died is not None and self._undisturbed(opened_at, 0.0, disturbing) > died

    def forgot(self, began: float, ended: float) -> bool:
        """Whether Redis lost everything in that time, or just before."""
        return any(
            each.what in ("flush", "restart") and each.began < ended and each.ended > began - RECOVERS_S
            for each in self._faults
        )

    def may_have_forgotten(self, began: float, ended: float) -> bool:
        """Whether both a node and Redis lost what they had of a session that was well at the first time."""
        began -= FORGETS_S
        away = any(each.part == "node" and each.began < ended and each.ended > began for each in self._faults)
        return away and self.forgot(began, ended)
