"""Reconciler: compares what is stored with what this node runs, and makes it so here."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from app.cluster._affected import Affected, Kind
from app.cluster.node_status.change_effects import ChangeEffects, Identity
from app.domain import KEY_ISSUER, BackendSpec, is_name
from app.errors import NotFound
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.connections import ConnectionRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.switches import SwitchRepository
from app.storage.backends import BackendRepository
from app.storage.tenants import TenantRepository

BATCH = 500  # identities in one query

_T = TypeVar("_T")


class Reconciler:
    """One comparison at a time: an answer that is carried out must not be older than one that was. `find` looks up a
    backend or a toolset."""

    def __init__(  # noqa: PLR0913 - once, of repositories
        self,
        local: ChangeEffects,
        find: Callable[[str, str], Awaitable[BackendSpec]],
        backends: BackendRepository,
        tenants: TenantRepository,
        keys: ApiKeyRepository,
        issuers: IssuerRepository,
        switches: SwitchRepository,
        connections: ConnectionRepository,
    ) -> None:
        self._find, self._switches, self._connections = find, switches, connections
        self._local, self._backends, self._tenants, self._keys, self._issuers = local, backends, tenants, keys, issuers

    async def compare(self, affected: Affected) -> Collection[Affected]:
        """Returns what else has to be compared, not as soon. Raises StorageUnavailable."""
        match affected:
            case Affected(Kind.BACKEND, (tenant, name)):
                spec = await _or_none(self._find(tenant, name))
                if spec is None:
                    self._local.backend_removed((tenant, name))
                else:
                    self._configure(spec)
            case Affected(Kind.TENANT | Kind.TENANT_GONE, (tenant,)):
                await self._compare_tenant(tenant)
            case Affected(Kind.PRINCIPAL, (tenant, issuer, subject)):
                await self._compare_identities([(tenant, issuer, subject)])
            case Affected(Kind.ISSUER, (tenant, issuer)):
                if await self._issuers.find(tenant, issuer) is None:
                    self._local.issuer_changed(tenant, issuer)
            case Affected(Kind.GRANTS, (tenant,)):
                await self._compare_grants(tenant)
            case Affected(Kind.EVERYTHING):
                return await self._compare_everything()
        return ()

    def _configure(self, spec: BackendSpec) -> None:
        current = self._local.current(spec.key)
        known = [*self._local.running(spec.key), *([current] if current else [])]
        # A backend that was removed and made again starts over with its versions.
        if any(_is_other(each, spec) and (not _is_of(each, spec) or each.version >= spec.version) for each in known):
            self._local.backend_removed(spec.key)
        if _is_other(self._local.current(spec.key), spec):
            self._local.backend_changed(spec)
        if any(each.access != spec.access for each in known):
            self._local.access_changed(spec)

    async def _compare_tenant(self, name: str) -> None:
        tenant = await _or_none(self._tenants.get(name))
        if tenant is None:
            self._local.tenant_removed(name)
            return
        warm = await self._backends.list_warm(name)  # they were stopped if it was switched off
        self._local.tenant_changed(tenant)
        for spec in warm:
            self._configure(spec)
        await self._compare_grants(name)  # it may have no authorization server any more

    async def _compare_grants(self, tenant: str) -> None:
        if grants := self._local.grants(tenant):
            self._local.grants_over(tenant, await self._connections.standing(tenant, grants, datetime.now(UTC)))

    async def _compare_identities(self, identities: Collection[Identity]) -> None:
        """Does not look at tenants."""
        keys = [(tenant, subject) for tenant, issuer, subject in identities if issuer == KEY_ISSUER]
        standing = await self._keys.standing(keys, datetime.now(UTC)) if keys else set()
        off = await self._switches.off_among(identities)
        for identity in identities:
            tenant, issuer, subject = identity
            if issuer == KEY_ISSUER and (tenant, subject) not in standing:
                self._local.key_revoked(identity)
            elif identity in off:
                self._local.principal_off(identity, off[identity])

    async def _compare_everything(self) -> Collection[Affected]:
        """Asks the database first: without its answer caches must stay."""
        warm = {spec.key for spec in await self._backends.list_warm()}
        tenants_off = set(await self._switches.tenants_off())
        self._local.forget_everything()
        everybody = list(self._local.identities())
        for start in range(0, len(everybody), BATCH):
            await self._compare_identities(everybody[start : start + BATCH])
        keys = {key for key in warm | self._local.backends() if is_name(key[1])}  # without checks of backends
        issuers = {identity[:2] for identity in self._local.identities() if identity[1] != KEY_ISSUER}
        tenants = {key[0] for key in keys} | self._local.inspected() | tenants_off ^ self._local.tenants_off.keys()
        return [
            *(Affected(Kind.ISSUER, issuer) for issuer in issuers),
            *(Affected(Kind.GRANTS, (tenant,)) for tenant in {identity[0] for identity in self._local.identities()}),
            *(Affected(Kind.TENANT, (tenant,)) for tenant in tenants),
            *(Affected(Kind.BACKEND, key) for key in keys),
        ]


async def _or_none(found: Awaitable[_T]) -> _T | None:
    try:
        return await found
    except NotFound:
        return None


def _is_of(known: BackendSpec, spec: BackendSpec) -> bool:
    """One is an earlier definition of the other, and not of a backend that had its name."""
    return (known.made, known.home) == (spec.made, spec.home)


def _is_other(known: BackendSpec | None, spec: BackendSpec) -> bool:
    """But for which tools are shown, and to whom: who leases a process for some of them leases it for all."""
    if known is None or known.made != spec.made:
        return True
    return replace(known, selection=spec.selection, pin=spec.pin, access=spec.access) != spec
