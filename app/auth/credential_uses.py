"""CredentialUses: from which addresses a principal has used this node, how often and when.

In memory and bounded: above MAX_PRINCIPALS a principal that was not used for long is forgotten, above MAX_ADDRESSES of
one principal the address that was not used for the longest time. A forgotten one counts as new.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_network

import anyio
from prometheus_client import Counter

from app.domain import Principal
from app.telemetry.logs import Thinned

MAX_PRINCIPALS = 10_000
MAX_ADDRESSES = 16  # of one principal
MAX_MET = 100  # new addresses that are shown
MET_S = 3600.0  # for so long
MEASURE_EVERY_S = 60.0
MANY = 600  # requests of a principal in a minute: fewer are never far more than usual
FAR_MORE = 10  # times its usual minute
KNOWN_MINUTES = 5  # after which it is known what is usual
BUSY_S = 600.0  # how long it is shown
SAY_AGAIN_S = 60.0  # between log lines about a principal that uses more addresses than are remembered
TICK_S = 1.0
_SAMPLE = 5  # principals from which the one to forget is chosen
_V6_CLIENT_BITS = 64  # a client with one IPv6 address has the network around it, and changes within it

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Use:
    """The use of one address. Times are Unix time, exact to TICK_S."""

    network: str
    first_at: float
    last_at: float
    requests: int = 1

    def again(self, now: float) -> None:
        self.requests += 1
        self.last_at = now


@dataclass(frozen=True, slots=True)
class NewAddress:
    """A principal was used from an address that is new for it, `since` then so often. Times are Unix time."""

    identity: tuple[str, str, str]
    address: str
    requests: int
    all_requests: int  # from all addresses that are remembered
    since: float


@dataclass(frozen=True, slots=True)
class Busy:
    """A principal was used far more in a minute than it `usual`ly is."""

    identity: tuple[str, str, str]
    requests: int
    usual: float
    since: float


@dataclass(slots=True)
class _Addresses:
    """The addresses of one principal, in the order in which they were first used."""

    uses: dict[str, Use] = field(default_factory=dict)
    total: int = 0  # when it was measured last
    minutes: int = 0
    usual: float = 0.0
    _has_forgotten: bool = False
    _silent_until: float = 0.0
    _left_out: int = 0

    @property
    def last_at(self) -> float:
        return max(use.last_at for use in self.uses.values())

    def measured(self) -> tuple[int, float] | None:
        """A minute is over: its requests and those of a usual one, if it had far more."""
        total = sum(use.requests for use in self.uses.values())
        requests, self.total = max(0, total - self.total), total
        usual, self.minutes = self.usual, self.minutes + 1
        is_far_more = self.minutes > KNOWN_MINUTES and requests >= max(MANY, FAR_MORE * usual)
        if not is_far_more:  # what is abuse must not become usual
            self.usual += (requests - usual) / min(self.minutes, 60)
        return (requests, usual) if is_far_more else None

    def has_network(self, network: str) -> bool:
        return any(use.network == network for use in self.uses.values())

    def add(self, address: str, use: Use) -> None:
        if len(self.uses) >= MAX_ADDRESSES:
            self._has_forgotten = True
            del self.uses[min(self.uses, key=lambda each: self.uses[each].last_at)]
        self.uses[address] = use

    def left_out(self, now: float) -> int | None:
        """For the log line of a new address: how many lines were left out before it; None to leave it out too."""
        if now < self._silent_until:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        if self._has_forgotten:
            self._silent_until = now + SAY_AGAIN_S
        return left_out


class CredentialUses:
    """Used from the event loop's thread only. `run` keeps the time, so that `note` need not read the clock."""

    def __init__(self, new_addresses: Counter | None = None, clock: Callable[[], float] = time.time) -> None:
        self._counter, self._clock, self._now = new_addresses, clock, clock()
        self._known: dict[tuple[str, str, str], _Addresses] = {}
        self._queue: deque[tuple[str, str, str]] = deque()  # of `_known`; those to look at next are first
        self._thinned = Thinned(log)
        self._met: deque[tuple[tuple[str, str, str], str]] = deque(maxlen=MAX_MET)
        self._busy: dict[tuple[str, str, str], tuple[Busy, float]] = {}  # and until when it is shown
        self._settled: dict[tuple[str, str, str], int] = {}  # with the requests that it had sent by then

    def note(self, principal: Principal, address: str) -> None:
        """Counts a request that this node has authenticated."""
        try:
            use = self._known[principal.tenant, principal.issuer, principal.subject].uses[address]
        except KeyError:
            self._meet(principal, address)
        else:
            use.again(self._now)

    def of(self, identity: tuple[str, str, str]) -> Mapping[str, Use]:
        """The uses of a principal by address."""
        known = self._known.get(identity)
        return {} if known is None else known.uses

    def new_addresses(self) -> Iterator[NewAddress]:
        """Of the last hour."""
        for identity, address in self._met:
            uses = self.of(identity)
            if address in uses and self._now - uses[address].first_at <= MET_S and not self._is_settled(identity):
                requests, every = uses[address].requests, sum(use.requests for use in uses.values())
                yield NewAddress(identity, address, requests, every, uses[address].first_at)

    def busy(self) -> Iterator[Busy]:
        """Of the last ten minutes."""
        found = [busy for busy, until in self._busy.values() if until > self._now]
        return iter([busy for busy in found if not self._is_settled(busy.identity)])

    def shown(self) -> set[tuple[str, str, str]]:
        """The principals of which something is shown."""
        return {each.identity for found in (self.new_addresses(), self.busy()) for each in found}

    def settle(self, matches: Callable[[tuple[str, str, str]], bool]) -> None:
        """These principals are switched off or gone: nothing is shown of them, unless they are used again."""
        for identity in filter(matches, self.shown()):
            self._settled[identity] = self._requests(identity)

    def _is_settled(self, identity: tuple[str, str, str]) -> bool:
        return identity in self._settled and self._settled[identity] == self._requests(identity)

    def _requests(self, identity: tuple[str, str, str]) -> int:
        return sum(use.requests for use in self.of(identity).values())

    def measure(self) -> None:
        """Compares the minute that has passed with what is usual. A microsecond for each principal."""
        self._busy = {identity: each for identity, each in self._busy.items() if each[1] > self._now}
        told = {*self._busy, *(identity for identity, _ in self._met)}
        self._settled = {identity: each for identity, each in self._settled.items() if identity in told}
        for identity, known in self._known.items():
            found = known.measured()
            if found is not None and (identity in self._busy or len(self._busy) < MAX_MET):
                before = self._busy.get(identity)
                since = self._now if before is None else before[0].since
                self._busy[identity] = Busy(identity, *found, since), self._now + BUSY_S

    def tick(self) -> None:
        """Reads the clock."""
        self._now = self._clock()

    async def run(self) -> None:
        """Ticks until it is cancelled."""
        due_at = self._now + MEASURE_EVERY_S
        while True:
            self.tick()
            if self._now >= due_at:
                due_at = self._now + MEASURE_EVERY_S
                self.measure()
            await anyio.sleep(TICK_S)

    def _meet(self, principal: Principal, address: str) -> None:
        self.tick()
        known, network = self._known.get(principal.identity), _network(address)
        is_new = known is not None and not known.has_network(network)
        if known is None:
            self._make_room()
            known = self._known[principal.identity] = _Addresses()
            self._queue.append(principal.identity)
        known.add(address, Use(network, self._now, self._now))
        if is_new:
            self._met.append((principal.identity, address))
            self._tell(principal, address, known)

    def _make_room(self) -> None:
        """Forgets the least recently used of the first few principals, and moves the others to the end. That is nearly
        the least recently used of all, without an order that the message path would have to keep."""
        if len(self._known) < MAX_PRINCIPALS:
            return
        first = [self._queue.popleft() for _ in range(_SAMPLE)]
        oldest = min(first, key=lambda identity: self._known[identity].last_at)
        del self._known[oldest]
        self._queue.extend(each for each in first if each != oldest)

    def _tell(self, principal: Principal, address: str, known: _Addresses) -> None:
        if self._counter is not None:
            self._counter.inc()
        left_out = known.left_out(self._now)
        if left_out is None:
            return
        fields: dict[str, object] = {"client": address, "principal": principal.name, "tenant": principal.tenant}
        fields |= {"addresses": len(known.uses)} | ({"left_out": left_out} if left_out else {})
        self._thinned.info(principal.tenant, "a credential is used from a new address", fields)


def _network(address: str) -> str:
    """What must differ for an address to count as new: itself, or for IPv6 the /64 around it."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, _V6_CLIENT_BITS), strict=False))
