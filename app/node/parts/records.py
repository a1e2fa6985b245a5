"""The database and its repositories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from app.auth.sealing import Sealer
from app.domain import BackendSpec
from app.errors import BackendNotFound, Disabled
from app.node.parts.opening import Opening
from app.sessions.directory import BackendDirectory
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.connections import ConnectionRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.switches import SwitchRepository
from app.storage.audit_follower import AuditFollower
from app.storage.backends import BackendRepository
from app.storage.database_watch import DatabaseWatch
from app.storage.declared import StoredResources
from app.storage.engine import Database
from app.storage.secret_key import SecretKeyCheck
from app.storage.tenants import TenantRepository
from app.storage.tools.approvals import ApprovalRepository
from app.storage.tools.catalog import CatalogRepository
from app.storage.tools.toolsets import ToolsetRepository


@dataclass(frozen=True, slots=True)
class Records:
    """`directory` caches backends, toolsets and tenants. `watch` knows whether the database answers, `trail` what other
    processes have changed in it. `tenants_off` and `warm` are as of the start: tenants that are switched off, and
    backends with warm processes."""

    database: Database
    tenants: TenantRepository
    backends: BackendRepository
    toolsets: ToolsetRepository
    stored: StoredResources
    catalog: CatalogRepository
    approvals: ApprovalRepository
    directory: BackendDirectory
    keys: ApiKeyRepository
    switches: SwitchRepository
    issuers: IssuerRepository
    connections: ConnectionRepository
    watch: DatabaseWatch
    trail: AuditFollower
    tenants_off: Mapping[str, Disabled]
    warm: Sequence[BackendSpec]


async def find_registered(
    backends: BackendRepository, toolsets: ToolsetRepository, tenant: str, name: str
) -> BackendSpec:
    """The backend or toolset with this name. Raises BackendNotFound: the tenant has neither."""
    try:
        return await backends.get(tenant, name)
    except BackendNotFound:
        return await toolsets.find(tenant, name)


async def open_records(opening: Opening) -> Records:
    """Reads what the other parts need at the start.

    Raises:
        GatewayError: the database does not answer, or was made with another secret key.
    """
    database = Database(opening.settings.database_url)
    opening.stack.push_async_callback(database.aclose)
    await database.ping()
    await SecretKeyCheck(database, opening.settings.secret_key).claim()
    tenants, backends = TenantRepository(database), BackendRepository(database, Sealer(opening.settings.secret_key))
    await backends.seal_all()
    toolsets, switches = ToolsetRepository(database), SwitchRepository(database)
    return Records(
        database=database,
        tenants=tenants,
        backends=backends,
        toolsets=toolsets,
        stored=StoredResources(database),
        catalog=CatalogRepository(database),
        approvals=ApprovalRepository(database),
        directory=BackendDirectory(partial(find_registered, backends, toolsets), tenants.get),
        keys=ApiKeyRepository(database),
        switches=switches,
        issuers=IssuerRepository(database),
        connections=ConnectionRepository(database),
        watch=DatabaseWatch(database),
        trail=AuditFollower(database),
        tenants_off=await switches.tenants_off(),
        warm=await backends.list_warm(),  # before there are tasks: what fails among them is raised in a group
    )
