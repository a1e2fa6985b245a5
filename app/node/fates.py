"""When a node of `serve --nodes` that has died is started again, and whether one that does not answer hangs. Pure."""

from dataclasses import dataclass

AT_ONCE_S = 10.0  # a node that dies so soon after being ready will probably do so again: an early death
RARELY_AFTER = 5  # early deaths in a row: what is wrong lasts, like a database that is away
FIRST_DELAY_S, MAX_DELAY_S, RARELY_S = 0.5, 8.0, 60.0
ASK_EVERY_S = 1.0  # how often each node is asked whether its event loop runs
HUNG_AFTER = 10  # unanswered looks in a row that count: longer than a garbage collection or a large message takes
SILENT_FOR = 60  # unanswered looks in a row, counted or not: a node in an endless loop lacks CPU time as well
STARVED = 0.5  # a look does not count if parent or node waited for the CPU for so much of ASK_EVERY_S


@dataclass(slots=True)
class Fate:
    """When one node is restarted after it has died. Pure."""

    deaths: int = 0  # early ones, in a row

    def died(self, lived_s: float | None) -> float:
        """Seconds until the next start. `lived_s`: the time since it was ready, if it ever was."""
        at_once = lived_s is None or lived_s < AT_ONCE_S
        self.deaths = self.deaths + 1 if at_once else 0
        if self.is_hopeless:
            return RARELY_S
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** max(0, self.deaths - 1))

    @property
    def is_hopeless(self) -> bool:
        """It is started rarely, and only beside others that run."""
        return self.deaths >= RARELY_AFTER


@dataclass(slots=True)
class Silence:
    """Whether a node that does not answer hangs. Pure."""

    looks: int = 0  # without an answer, in a row
    misses: int = 0  # those of them that count

    def looked(self, *, answered: bool, starved_s: float) -> bool:
        """Counts one look; True once the node hangs.

        `starved_s`: how late the parent looked, or how long the node has waited for the CPU since the last look,
        whichever is longer. On an overloaded machine killing a slow node would only add load.
        """
        if answered:
            self.looks = self.misses = 0
            return False
        self.looks += 1
        if starved_s < STARVED * ASK_EVERY_S:
            self.misses += 1
        return self.misses >= HUNG_AFTER or self.looks >= SILENT_FOR
