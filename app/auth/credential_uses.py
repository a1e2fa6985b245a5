"""CredentialUses: from which addresses a principal was let in at this node, how often and when.

In memory, and bounded: above MAX_PRINCIPALS one that was not let in for long is forgotten, above MAX_ADDRESSES of one
principal the address that it has not come from for the longest. What is forgotten is new again.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_network

import anyio
from prometheus_client import Counter

from app.domain import Principal
from app.logs import Thinned

MAX_PRINCIPALS = 10_000
MAX_ADDRESSES = 16  # of one principal
SAY_AGAIN_S = 60.0  # of a principal that comes from more addresses than are remembered: to it nothing is new
TICK_S = 1.0
_SAMPLE = 5  # principals among which the one to forget is looked for
_V6_CLIENT_BITS = 64  # who has one address of IPv6 has the network around it, and changes within it

log = logging.getLogger(__name__)


class Use:
    """What is known of one address. Moments are Unix time, `last_at` to TICK_S."""

    __slots__ = ("first_at", "last_at", "network", "requests")

    def __init__(self, network: str, now: float) -> None:
        self.network, self.requests, self.first_at, self.last_at = network, 1, now, now


class _Addresses:
    """Those of one principal, by address, in the order in which they came up."""

    __slots__ = ("has_forgotten", "left_out", "silent_until", "uses")

    def __init__(self) -> None:
        self.uses: dict[str, Use] = {}
        self.has_forgotten, self.silent_until, self.left_out = False, 0.0, 0

    @property
    def last_at(self) -> float:
        return max(use.last_at for use in self.uses.values())

    def has_network(self, network: str) -> bool:
        return any(use.network == network for use in self.uses.values())

    def add(self, address: str, use: Use) -> None:
        if len(self.uses) >= MAX_ADDRESSES:
            self.has_forgotten = True
            del self.uses[min(self.uses, key=lambda each: self.uses[each].last_at)]
        self.uses[address] = use


class CredentialUses:
    """Used from the event loop's thread only. `run` keeps the time: a call on the message path does not ask for it."""

    def __init__(self, new_addresses: Counter | None = None, clock: Callable[[], float] = time.time) -> None:
        self._counter, self._clock, self._now = new_addresses, clock, clock()
        self._known: dict[tuple[str, str, str], _Addresses] = {}
        self._queue: deque[tuple[str, str, str]] = deque()  # each of them once; who is looked at next stands first
        self._thinned = Thinned(log)

    def __repr__(self) -> str:
        return f"<CredentialUses [{len(self._known)} principals]>"

    def note(self, principal: Principal, address: str) -> None:
        """A request of this principal was let in; one that another node has let in counts there."""
        try:
            use = self._known[principal.tenant, principal.issuer, principal.subject].uses[address]
        except KeyError:
            self._meet(principal, address)
        else:
            use.requests += 1
            use.last_at = self._now

    def of(self, identity: tuple[str, str, str]) -> Mapping[str, Use]:
        """What is remembered of a principal, by address."""
        known = self._known.get(identity)
        return {} if known is None else known.uses

    def tick(self) -> None:
        """Looks at the clock."""
        self._now = self._clock()

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            self.tick()
            await anyio.sleep(TICK_S)

    def _meet(self, principal: Principal, address: str) -> None:
        self.tick()
        known, network = self._known.get(principal.identity), _network(address)
        is_new = known is not None and not known.has_network(network)
        if known is None:
            self._make_room()
            known = self._known[principal.identity] = _Addresses()
            self._queue.append(principal.identity)
        known.add(address, Use(network, self._now))
        if is_new:
            self._tell(principal, address, known)

    def _make_room(self) -> None:
        """Of those that stand first the one that was let in longest ago goes, the others behind all. It is nearly the
        oldest of all, and the message path keeps no order for it."""
        if len(self._known) < MAX_PRINCIPALS:
            return
        first = [self._queue.popleft() for _ in range(_SAMPLE)]
        oldest = min(first, key=lambda identity: self._known[identity].last_at)
        del self._known[oldest]
        self._queue.extend(each for each in first if each != oldest)

    def _tell(self, principal: Principal, address: str, known: _Addresses) -> None:
        if self._counter is not None:
            self._counter.inc()
        if self._now < known.silent_until:
            known.left_out += 1
            return
        fields = {"client": address, "principal": principal.name, "tenant": principal.tenant,
                  "addresses": len(known.uses)}  # fmt: skip
        if known.left_out:
            fields["left_out"] = known.left_out
        self._thinned.info(principal.tenant, "a credential is used from a new address", fields)
        known.left_out = 0
        if known.has_forgotten:
            known.silent_until = self._now + SAY_AGAIN_S


def _network(address: str) -> str:
    """By what an address is new or is not: itself, or for IPv6 the /64 around it."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, _V6_CLIENT_BITS), strict=False))
