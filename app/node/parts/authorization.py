"""The authorization servers of tenants."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.auth.authorization.assertions import Assertions
from app.auth.authorization.clients import ClientDocuments, Clients, ClientSecrets
from app.auth.authorization.connection_secrets import ConnectionSecrets
from app.auth.authorization.people import People
from app.auth.authorization.server import AuthorizationServers, RememberedRules
from app.auth.provider_client import ProviderClient
from app.domain import Connection, Principal, SignIn
from app.domain.resources.clients import CLIENTS
from app.errors import NotFound
from app.node.parts.records import Records
from app.storage.access.connections import ConnectionRepository
from app.storage.access.people import PersonRepository
from app.storage.audit import Act
from app.storage.engine import Database
from app.telemetry import logs

if TYPE_CHECKING:
    from app.auth.authorization.decisions import Ask
    from app.node.parts.credentials import Credentials


@dataclass(frozen=True)
class ConnectionTrail:
    """Fulfils `auth.authorization.server.Trail`."""

    connections: ConnectionRepository
    database: Database

    async def added(self, connection: Connection) -> None:
        """Raises NotFound, QuotaExceeded."""
        scopes = " ".join(sorted(connection.scopes))
        act = _act(connection.identity, "connection.create", connection.id, f"{connection.client_id} {scopes}")
        await self.connections.add(connection, act=act)

    async def refused(self, ask: "Ask", person: Principal) -> None:
        async with self.database.write(_act(person.identity, "connection.refuse", "", ask.client.client_id)):
            """What was refused is in the trail only."""

    async def ended(self, connection: Connection, why: str) -> None:
        act = _act(connection.identity, "connection.end", connection.id, why)
        try:
            await self.connections.end(connection.tenant, connection.id, act=act)
        except NotFound:
            return  # somebody was faster


def _act(identity: tuple[str, str, str], action: str, connection_id: str, detail: str) -> Act:
    served = logs.current.get()
    request_id = "" if served is None else str(served.fields().get("request", ""))
    return Act(identity[0], identity, action, f"connections/{connection_id}", datetime.now(UTC), request_id, detail)


def authorization_servers(records: Records, credentials: "Credentials", secret_key: bytes) -> AuthorizationServers:
    """Those of all tenants."""

    async def rules(tenant: str) -> SignIn | None:
        return (await records.tenants.get(tenant)).sign_in

    documents = ClientDocuments(credentials.outbound.get)
    provider = ProviderClient(credentials.outbound, credentials.sealer)
    return AuthorizationServers(
        rules=RememberedRules(rules).of,
        clients=Clients(records.stored.of(CLIENTS), documents),
        connections=records.connections,
        trail=ConnectionTrail(records.connections, records.database),
        people=People(
            credentials.keys,
            credentials.tokens,
            records.switches,
            records.issuers,
            provider,
            credentials.sealer,
            PersonRepository(records.database),
        ),
        assertions=Assertions(credentials.tokens, credentials.client_keys),
        signing=credentials.signing,
        tokens=credentials.own_tokens,
        secrets=ConnectionSecrets(secret_key),
        client_secrets=ClientSecrets(secret_key),
    )
