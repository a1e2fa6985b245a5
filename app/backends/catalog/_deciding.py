"""Deciding: judges what backends offer, and stores what is found in one transaction with what it follows from. A node
that dies has stored all of it or nothing, and no node sees a rejection whose tool still counts as approved.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from app.backends.catalog._stores import ApprovalStore, CatalogStore
from app.backends.catalog.entries import Decision
from app.backends.catalog.judging import Decided, Found, decided, judge, waiting, withheld
from app.concurrency.single_flight import SingleFlight
from app.domain import BackendSpec
from app.errors import Conflict, StorageUnavailable
from app.protocol.toolset.offer import Offer
from app.storage.audit import Act
from app.storage.tools.approvals import Approvals, Judgement, Overtaken
from app.storage.tools.catalog import CatalogRow

MAX_JUDGEMENTS = 20  # of one backend, overtaken each time: a dozen decisions at two nodes overtake each other often
JUDGES = 4  # threads that read definitions: a hostile backend may keep one busy for long

Key = tuple[str, str]
T = TypeVar("T")


class Deciding:
    """A part of the catalogue. `names_beside`: of the tools of the tenant's other backends."""

    def __init__(
        self, store: CatalogStore, approvals: ApprovalStore, names_beside: Callable[[Key], Awaitable[Sequence[str]]]
    ) -> None:
        self._store, self._approvals, self._names_beside = store, approvals, names_beside
        self._storing = SingleFlight[Key]()  # one at a time of each backend: else many at once overtake each other
        self._aside = SingleFlight[str]()
        self._judges = anyio.CapacityLimiter(JUDGES)

    async def aside(self, tenant: str, work: Callable[..., T], *args: Any) -> T:
        """As `Catalog.aside`."""
        async with self._aside.turn(tenant):
            return await anyio.to_thread.run_sync(work, *args, limiter=self._judges)

    async def note(self, key: Key, definition: str, offer: Offer) -> None:
        """Stores what the backend offers now. Raises BackendNotFound, StorageUnavailable."""

        async def store() -> None:
            said = await self._approvals.get(*key)
            judgement = Judgement(await self._found(key, offer, said), said)
            await self._store.put(*key, definition, offer.dump(), judgement, datetime.now(UTC))

        await self._until_not_overtaken(key, store)

    async def decide(self, key: Key, decision: Decision, act: Act | None) -> None:
        """Approves or rejects tools as they are offered now. Raises: as `Catalog.decide`."""
        looked_at = decision.revision

        async def store() -> None:
            nonlocal looked_at
            row = await self._row(key)
            if row is None:
                raise Conflict("nobody knows yet what this backend offers: check it first")
            if looked_at is not None and looked_at != row.revision:
                raise Conflict(f"the backend offers something else now: revision {row.revision}; look again")
            if decision.approves:
                looked_at = row.revision  # not what it offers only since
            said, offer = await self._approvals.get(*key), Offer.load(row.offer)
            tools = decision.tools
            if tools is None:
                found = await self._found(key, offer, said)
                tools = await self.aside(key[0], waiting, offer, said, found)
            said_now = Decided(decision.approves, decision.by, datetime.now(UTC))
            changed = await self.aside(key[0], decided, offer, tools, said, said_now)
            pins = await self._found(key, offer, said.after(changed))
            await self._approvals.put(*key, changed, Judgement(pins, said, row.revision), act=act)

        await self._until_not_overtaken(key, store)

    async def under(
        self, key: Key, policy: str, minor: str, store: Callable[[Judgement], Awaitable[BackendSpec]]
    ) -> BackendSpec:
        """As `Catalog.under`."""

        async def judge_and_store() -> BackendSpec:
            row = await self._row(key)
            said = replace(await self._approvals.get(*key), policy=policy, minor=minor)
            if row is None:
                return await store(Judgement({}, said))
            return await store(Judgement(await self._found(key, Offer.load(row.offer), said), said, row.revision))

        return await self._until_not_overtaken(key, judge_and_store)

    async def withheld(self, key: Key, offer: Offer) -> Mapping[str, str]:
        """As `Catalog.withheld`."""
        said = await self._approvals.get(*key)
        if said.policy == "off":
            return {}
        for _ in range(MAX_JUDGEMENTS):
            pins = await self._found(key, offer, said)
            before, said = said, await self._approvals.get(*key)  # a person may have said something else meanwhile
            if said == before:
                break
        return withheld(offer, pins, before.policy)

    async def _row(self, key: Key) -> CatalogRow | None:
        return (await self._store.get(key[0], [key[1]])).get(key[1])

    async def _found(self, key: Key, offer: Offer, said: Approvals) -> Mapping[str, Found]:
        if said.policy == "off" and not said.tools:
            return {}
        beside = await self._names_beside(key)
        return await self.aside(key[0], judge, offer, said, beside)

    async def _until_not_overtaken(self, key: Key, attempt: Callable[[], Awaitable[T]]) -> T:
        for _ in range(MAX_JUDGEMENTS):
            async with self._storing.turn(key):
                with suppress(Overtaken):
                    return await attempt()
        raise StorageUnavailable(
            "what the backend offers, or what is approved of it, changes faster than it can be judged"
        )
