"""Reconciler: brings this node to the state in the database, after changes of which only the name is known."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import anyio

from app.cluster.node_status.change_effects import ChangeEffects, Identity
from app.cluster.routing.notice import RESYNC, Kind, Notice
from app.domain import KEY_ISSUER, BackendSpec, is_name
from app.errors import GatewayError, NotFound
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.switches import SwitchRepository
from app.storage.backends import BackendRepository
from app.storage.tenants import TenantRepository

MAX_DUE = 1000  # above it everything is looked up again, which is less work
RETRY_S = 0.5
REST_S = 0.05  # between two checks of whether the next RESYNC may begin
RESYNC_EVERY_S = 1.0  # an unstable connection to Redis must not become a load on the database
BATCH = 500  # keys in one query

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class Reconciler:
    """Looks up what is due, each once: first what has changed, then what only may have changed, which can be much.
    Methods other than `run` neither wait nor raise. `find` looks up a backend or a toolset."""

    def __init__(  # noqa: PLR0913 - once, of repositories
        self,
        local: ChangeEffects,
        find: Callable[[str, str], Awaitable[BackendSpec]],
        backends: BackendRepository,
        tenants: TenantRepository,
        keys: ApiKeyRepository,
        issuers: IssuerRepository,
        switches: SwitchRepository,
    ) -> None:
        self._find, self._switches = find, switches
        self._local, self._backends, self._tenants, self._keys, self._issuers = local, backends, tenants, keys, issuers
        self._due: dict[Notice, None] = {}
        self._doubtful: dict[Notice, None] = {}  # what is left of the last RESYNC
        self._has_work = anyio.Event()
        self._failed = set[Notice]()  # with a bug, which was said
        self._in_hand: Notice | None = None
        self._is_superseded = False
        self._next_resync_at = 0.0
        self._came_back = set[str]()  # tenants switched on again, until their warm backends are due

    def add(self, notice: Notice) -> None:
        """Looks this up soon; everything, if it is RESYNC."""
        if len(self._due) >= MAX_DUE:
            self._due.clear()
            notice = RESYNC
        self._due[notice] = None
        self._doubtful.pop(notice, None)
        self.supersede(notice)
        self._has_work.set()

    def came_back(self, tenant: str) -> None:
        """Looks up a tenant that was switched on again, with its backends."""
        self._came_back.add(tenant)
        self.add(Notice(Kind.TENANT_CHANGED, (tenant,)))

    def supersede(self, notice: Notice) -> None:
        """If this is being looked up, it is looked up again: the answer may be outdated."""
        if notice == self._in_hand:
            self._is_superseded = True

    async def run(self) -> None:
        """Runs until cancelled; waits while the database is away."""
        while True:
            await self._has_work.wait()
            if self._must_rest():
                await anyio.sleep(REST_S)
                continue
            notice = self._take()
            try:
                await self._reconcile(notice)
            except GatewayError:
                self.add(notice)
                await anyio.sleep(RETRY_S)
            except Exception:  # a bug; what it was about is due all the same, as revocations are among it
                if notice not in self._failed:
                    log.exception(
                        "Could not apply a change to this node; will retry: %s %s", notice.kind.name, notice.about
                    )
                if len(self._failed) >= MAX_DUE:
                    self._failed.clear()
                self._failed.add(notice)
                self.add(notice)
                await anyio.sleep(RETRY_S)
            else:
                self._failed.discard(notice)
            finally:
                self._in_hand = None
            if not self._due and not self._doubtful:
                self._has_work = anyio.Event()

    def _must_rest(self) -> bool:
        """Whether only a RESYNC is due, and the last one was moments ago."""
        is_alone = list(self._due) == [RESYNC] and not self._doubtful
        return is_alone and time.monotonic() < self._next_resync_at

    def _take(self) -> Notice:
        """1. The oldest that is due. 2. What is doubtful. 3. RESYNC, after all of the last one."""
        due = next((each for each in self._due if each != RESYNC), None)
        notice = due or next(iter(self._doubtful), RESYNC)
        self._due.pop(notice, None)
        self._doubtful.pop(notice, None)
        self._in_hand, self._is_superseded = notice, False
        return notice

    async def _reconcile(self, notice: Notice) -> None:
        match notice:
            case Notice(Kind.BACKEND_CHANGED, (tenant, name)):
                await self._reconcile_backend(notice, tenant, name)
            case Notice(Kind.TENANT_CHANGED, (tenant,)):
                await self._reconcile_tenant(notice, tenant)
            case Notice(Kind.PRINCIPAL_CHANGED, (tenant, issuer, subject)):
                await self._reconcile_principal(notice, (tenant, issuer, subject))
            case Notice(Kind.ISSUER_CHANGED, (tenant, issuer)):
                if await self._issuers.find(tenant, issuer) is None:
                    self._local.issuer_changed(tenant, issuer)
            case _:
                await self._reconcile_everything()

    async def _reconcile_backend(self, notice: Notice, tenant: str, name: str) -> None:
        spec = await _or_none(self._find(tenant, name))
        if self._is_superseded:
            self.add(notice)
            return
        if spec is None:
            self._local.backend_removed((tenant, name))
            return
        current = self._local.current(spec.key)
        known = [*self._local.running(spec.key), *([current] if current else [])]
        # A backend that was removed and made again starts over with its versions.
        if any(_is_other(each, spec) and (not _is_of(each, spec) or each.version >= spec.version) for each in known):
            self._local.backend_removed(spec.key)
        if _is_other(self._local.current(spec.key), spec):
            self._local.backend_changed(spec)

    async def _reconcile_tenant(self, notice: Notice, name: str) -> None:
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
        if tenant.enabled:  # its warm processes were stopped when it was switched off
            for spec in await self._backends.list_warm(name):
                self.add(Notice(Kind.BACKEND_CHANGED, spec.key))
        if not self._is_superseded:  # else it may have been off when that was read
            self._came_back.discard(name)

    async def _reconcile_principal(self, notice: Notice, identity: Identity) -> None:
        off = await self._switches.off(identity)
        if self._is_superseded:
            self.add(notice)
        else:
            self._local.principal_changed(identity, off)

    async def _reconcile_everything(self) -> None:
        """Asks the database first: without its answer caches must stay."""
        self._next_resync_at = time.monotonic() + RESYNC_EVERY_S
        warm = {spec.key for spec in await self._backends.list_warm()}
        tenants_off = set(await self._switches.tenants_off())
        self._local.forget_everything()
        await self._end_sessions_of_gone_keys()
        await self._end_sessions_of_who_is_off()
        keys = {key for key in warm | self._local.backends() if is_name(key[1])}  # without checks of backends
        issuers = {identity[:2] for identity in self._local.identities() if identity[1] != KEY_ISSUER}
        doubtful = [
            *(Notice(Kind.ISSUER_CHANGED, issuer) for issuer in issuers),
            *(
                Notice(Kind.TENANT_CHANGED, (tenant,))
                for tenant in {key[0] for key in keys}
                | self._local.inspected()
                | tenants_off ^ self._local.tenants_off.keys()
            ),
            *(Notice(Kind.BACKEND_CHANGED, key) for key in keys),
        ]
        self._doubtful = {notice: None for notice in doubtful if notice not in self._due}

    async def _end_sessions_of_gone_keys(self) -> None:
        keys = [identity for identity in self._local.identities() if identity[1] == KEY_ISSUER]
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            standing = await self._keys.standing([(each[0], each[2]) for each in batch], datetime.now(UTC))
            for identity in batch:
                if (identity[0], identity[2]) not in standing:
                    self._local.key_revoked(identity)

    async def _end_sessions_of_who_is_off(self) -> None:
        """Keys and principals only; tenants are looked up one by one."""
        everybody = list(self._local.identities())
        for start in range(0, len(everybody), BATCH):
            off = await self._switches.off_among(everybody[start : start + BATCH])
            for identity, why in off.items():
                self._local.principal_changed(identity, why)


async def _or_none(found: Awaitable[_T]) -> _T | None:
    try:
        return await found
    except NotFound:
        return None


def _is_of(known: BackendSpec, spec: BackendSpec) -> bool:
    """One is an earlier definition of the other, and not of a backend that had its name."""
    return (known.made, known.home) == (spec.made, spec.home)


def _is_other(known: BackendSpec | None, spec: BackendSpec) -> bool:
    """But for which tools are shown: who leases a process for some of them leases it for all."""
    return known is None or known.made != spec.made or replace(known, selection=spec.selection, pin=spec.pin) != spec
