"""Reconciler: brings this node to what the database says, where only is known that something has changed."""

import logging
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import anyio

from app.domain import KEY_ISSUER, BackendSpec, Tenant, is_name
from app.errors import Disabled, GatewayError, NotFound
from app.routing.notice import RESYNC, Kind, Notice
from app.this_node.effects import Identity, LocalEffects

MAX_DUE = 1000  # above it everything is looked up again, which is less work
RETRY_S = 0.5
REST_S = 0.05
RESYNC_EVERY_S = 1.0  # a connection that comes and goes must not become a load on the database
LOT = 500  # keys in one query

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class BackendsOf(Protocol):
    """Where backends are kept (`storage.backends.BackendRepository`). Raises StorageUnavailable, like the others."""

    async def get(self, tenant: str, name: str) -> BackendSpec:
        """Raises NotFound."""

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        """Those that keep warm processes, of all tenants or of one."""


class TenantsOf(Protocol):
    """Where tenants are kept."""

    async def get(self, name: str) -> Tenant:
        """Raises NotFound."""


class KeysOf(Protocol):
    """Where API keys are kept."""

    async def standing(self, keys: Collection[tuple[str, str]], now: datetime) -> set[tuple[str, str]]:
        """Those of these (tenant, id) that are neither revoked nor expired."""


class IssuersOf(Protocol):
    """Where token issuers are kept."""

    async def find(self, tenant: str, issuer: str) -> object | None:
        """None if the tenant believes no such issuer."""


class SwitchesOf(Protocol):
    """What is switched off (`storage.switches.SwitchRepository`)."""

    async def off(self, identity: Identity) -> Disabled | None:
        """What of this identity is: its tenant, its key or itself."""

    async def off_among(self, identities: Collection[Identity]) -> Mapping[Identity, Disabled]:
        """Which keys and principals among these are."""

    async def tenants_off(self) -> Mapping[str, Disabled]:
        """Which tenants are."""


class Reconciler:
    """What is due, once each, and the task that looks it up. The methods beside `run` neither wait nor raise.

    What has been said to have changed goes before what is looked at because something may have: that can be much.
    """

    def __init__(
        self,
        local: LocalEffects,
        backends: BackendsOf,
        tenants: TenantsOf,
        keys: KeysOf,
        issuers: IssuersOf,
        switches: SwitchesOf,
    ) -> None:
        self._switches = switches
        self._local, self._backends, self._tenants, self._keys, self._issuers = local, backends, tenants, keys, issuers
        self._due: dict[Notice, None] = {}
        self._doubtful: dict[Notice, None] = {}  # what is left of the last look at everything
        self._has_work = anyio.Event()
        self._in_hand: Notice | None = None
        self._is_superseded = False
        self._next_resync_at = 0.0
        self._came_back = set[str]()  # tenants that were off, until their warm backends are due

    def add(self, notice: Notice) -> None:
        """This may be another one now: BACKEND_CHANGED, TENANT_CHANGED, or RESYNC for everything."""
        if len(self._due) >= MAX_DUE:
            self._due.clear()
            notice = RESYNC
        self._due[notice] = None
        self._doubtful.pop(notice, None)
        self.supersede(notice)
        self._has_work.set()

    def came_back(self, tenant: str) -> None:
        """The tenant was off, and is not any more: its backends are looked up."""
        self._came_back.add(tenant)
        self.add(Notice(Kind.TENANT_CHANGED, (tenant,)))

    def supersede(self, notice: Notice) -> None:
        """What is being looked up about this has been overtaken: it is looked up again."""
        if notice == self._in_hand:
            self._is_superseded = True

    async def run(self) -> None:
        """Settles what is due until it is cancelled; while the database is away it waits."""
        while True:
            await self._has_work.wait()
            if self._must_rest():
                await anyio.sleep(REST_S)
                continue
            notice = self._take()
            try:
                await self._settle(notice)
            except GatewayError:
                self.add(notice)
                await anyio.sleep(RETRY_S)
            except Exception:
                log.exception("a change could not be carried out")
            finally:
                self._in_hand = None
            if not self._due and not self._doubtful:
                self._has_work = anyio.Event()

    def __repr__(self) -> str:
        return f"<Reconciler [{len(self._due)} due, {len(self._doubtful)} doubtful]>"

    def _must_rest(self) -> bool:
        """Nothing else is to be done than to look at everything, and that was moments ago."""
        is_alone = list(self._due) == [RESYNC] and not self._doubtful
        return is_alone and time.monotonic() < self._next_resync_at

    def _take(self) -> Notice:
        """1. The oldest that is due. 2. What is doubtful. 3. RESYNC: once the last one is done with."""
        due = next((each for each in self._due if each != RESYNC), None)
        notice = due or next(iter(self._doubtful), RESYNC)
        self._due.pop(notice, None)
        self._doubtful.pop(notice, None)
        self._in_hand, self._is_superseded = notice, False
        return notice

    async def _settle(self, notice: Notice) -> None:
        match notice:
            case Notice(Kind.BACKEND_CHANGED, (tenant, name)):
                await self._settle_backend(notice, tenant, name)
            case Notice(Kind.TENANT_CHANGED, (tenant,)):
                await self._settle_tenant(notice, tenant)
            case Notice(Kind.PRINCIPAL_CHANGED, (tenant, issuer, subject)):
                await self._settle_principal(notice, (tenant, issuer, subject))
            case Notice(Kind.ISSUER_CHANGED, (tenant, issuer)):
                if await self._issuers.find(tenant, issuer) is None:
                    self._local.issuer_changed(tenant, issuer)
            case _:
                await self._settle_everything()

    async def _settle_backend(self, notice: Notice, tenant: str, name: str) -> None:
        spec = await _or_none(self._backends.get(tenant, name))
        if self._is_superseded:
            self.add(notice)
            return
        if spec is None:
            self._local.backend_removed((tenant, name))
            return
        current = self._local.current(spec.key)
        known = [*self._local.running(spec.key), *([current] if current else [])]
        # Versions begin anew with a backend that is removed and made again; its tenant, then, has another home.
        if any(each != spec and (each.version >= spec.version or each.home != spec.home) for each in known):
            self._local.backend_removed(spec.key)
        if self._local.current(spec.key) != spec:
            self._local.backend_changed(spec)

    async def _settle_tenant(self, notice: Notice, name: str) -> None:
        tenant = await _or_none(self._tenants.get(name))
        if self._is_superseded:
            self.add(notice)
            return
        if tenant is None:
            self._local.tenant_removed(name)
            return
        if self._local.is_off(name):
            self._came_back.add(name)
        self._local.tenant_changed(tenant)
        if name not in self._came_back:
            return
        if tenant.enabled:  # what it keeps warm was stopped when it was switched off
            for spec in await self._backends.list_warm(name):
                self.add(Notice(Kind.BACKEND_CHANGED, spec.key))
        self._came_back.discard(name)

    async def _settle_principal(self, notice: Notice, identity: Identity) -> None:
        off = await self._switches.off(identity)
        if self._is_superseded:
            self.add(notice)
        else:
            self._local.principal_changed(identity, off)

    async def _settle_everything(self) -> None:
        """Asks the database first: without an answer what is remembered is all there is, for as long as it is good."""
        self._next_resync_at = time.monotonic() + RESYNC_EVERY_S
        warm = {spec.key for spec in await self._backends.list_warm()}
        tenants_off = set(await self._switches.tenants_off())
        self._local.forget_everything()
        await self._end_sessions_of_gone_keys()
        await self._end_sessions_of_who_is_off()
        keys = {key for key in warm | self._local.backends() if is_name(key[1])}  # others are checks of a backend
        issuers = {identity[:2] for identity in self._local.identities() if identity[1] != KEY_ISSUER}
        doubtful = [
            *(Notice(Kind.ISSUER_CHANGED, issuer) for issuer in issuers),
            *(
                Notice(Kind.TENANT_CHANGED, (tenant,))
                for tenant in {key[0] for key in keys} | tenants_off ^ self._local.tenants_off()
            ),
            *(Notice(Kind.BACKEND_CHANGED, key) for key in keys),
        ]
        self._doubtful = {notice: None for notice in doubtful if notice not in self._due}

    async def _end_sessions_of_gone_keys(self) -> None:
        """Whose key is gone."""
        keys = [identity for identity in self._local.identities() if identity[1] == KEY_ISSUER]
        for start in range(0, len(keys), LOT):
            lot = keys[start : start + LOT]
            standing = await self._keys.standing([(each[0], each[2]) for each in lot], datetime.now(UTC))
            for identity in lot:
                if (identity[0], identity[2]) not in standing:
                    self._local.key_revoked(identity)

    async def _end_sessions_of_who_is_off(self) -> None:
        """Keys and principals; tenants are looked at one by one."""
        everybody = list(self._local.identities())
        for start in range(0, len(everybody), LOT):
            off = await self._switches.off_among(everybody[start : start + LOT])
            for identity, why in off.items():
                self._local.principal_changed(identity, why)


async def _or_none(found: Awaitable[_T]) -> _T | None:
    try:
        return await found
    except NotFound:
        return None
