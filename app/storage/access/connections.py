"""What people have allowed clients, in the database: no code and no token, which are derived from a connection's turn.

Each turn is a comparison with the one that was read, so over all nodes a code or a refresh token counts once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, select, update

from app.domain import CLIENT_GRANT, Connection
from app.domain.resources.clients import REGISTERED, OAuthClient
from app.errors import NotFound
from app.storage._rows import matching, object_of, require_room, values_of
from app.storage._tables import clients, connections, tenants
from app.storage.audit import Act, record
from app.storage.engine import Database

MAX_PER_TENANT = 100_000
MAX_PER_PERSON = 100  # beyond it ends one whose code nobody has redeemed, then the one that was used longest ago
MAX_REGISTERED = 1000  # clients that have registered themselves; beyond it the oldest that nobody has connected goes
UNUSED = timedelta(days=1)  # so long a client may be registered and not connected

_SIGN_IN = exists().where(tenants.c.name == connections.c.tenant, tenants.c.sign_in.is_not(None))


class ConnectionRepository:
    """Connections by their id, always of one tenant. Those that are over are as if they were gone, and so are all of a
    tenant that has no authorization server any more."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant: str, connection_id: str, now: datetime) -> Connection | None:
        """The connection, if it is not over."""
        this = matching(connections, tenant=tenant, id=connection_id)
        row = await self._database.row(select(connections).where(this, connections.c.ends_at > now, _SIGN_IN))
        return None if row is None else object_of(Connection, row)

    async def standing(self, tenant: str, grants: Collection[str], now: datetime) -> set[str]:
        """Those of these grants (`Principal.grant`) that are not over."""
        names = {each.removeprefix(CLIENT_GRANT).partition(" ")[0] for each in grants if each.startswith(CLIENT_GRANT)}
        good = connections.c.id.in_(grants), connections.c.tenant == tenant, connections.c.ends_at > now, _SIGN_IN
        served = exists().where(tenants.c.name == tenant, tenants.c.sign_in.is_not(None))
        named = clients.c.tenant == tenant, clients.c.name.in_(names), served
        found = {row.id for row in await self._database.rows(select(connections.c.id).where(*good))}
        known = [object_of(OAuthClient, row) for row in await self._database.rows(select(clients).where(*named))]
        return found | {f"{CLIENT_GRANT}{each.name} {each.mark}" for each in known}.intersection(grants)

    async def list(
        self, tenant: str, now: datetime, *, person: tuple[str, str] | None = None, after: str = "", limit: int
    ) -> Sequence[Connection]:
        """Up to `limit` connections by id, after the id `after`, whose code has come back: all of the tenant, or those
        of a person, which is issuer and subject."""
        is_used = connections.c.turn > 0
        rows = and_(
            connections.c.tenant == tenant, is_used, connections.c.ends_at > now, connections.c.id > after, _SIGN_IN
        )
        if person is not None:
            rows &= matching(connections, issuer=person[0], subject=person[1])
        query = select(connections).where(rows).order_by(connections.c.id).limit(limit)
        return [object_of(Connection, row) for row in await self._database.rows(query)]

    async def allowed(self, connection: Connection, now: datetime) -> bool:
        """Whether the person has allowed this client the same before, or more, at this redirect address, and it is
        not over."""
        is_used = connections.c.turn > 0
        query = select(connections.c.scopes).where(_of_client(connection), is_used, connections.c.ends_at > now)
        wanted = set(connection.scopes)
        return any(wanted <= set(row.scopes) for row in await self._database.rows(query))

    async def add(self, connection: Connection, *, act: Act | None = None) -> None:
        """Stores a new one, and removes those of the tenant that are over, and of the person what is too many.

        Raises:
            NotFound: there is no such tenant.
            QuotaExceeded: the tenant has as many as it may have.
        """
        table, own = connections, connections.c.tenant == connection.tenant
        person = matching(table, tenant=connection.tenant, issuer=connection.issuer, subject=connection.subject)
        kept = (
            select(table.c.id)
            .where(person)
            .order_by(table.c.turn == 0, table.c.turned_at.desc())
            .limit(MAX_PER_PERSON - 1)
        )
        async with self._database.write(act) as transaction:
            await transaction.execute(delete(table).where(own, table.c.ends_at <= connection.created_at))
            ids = (await transaction.execute(kept)).scalars().all()
            displaced = delete(table).where(person, table.c.id.not_in(ids)).returning(table.c.id, table.c.turn)
            for row in (await transaction.execute(displaced)).all():
                if act is not None and row.turn > 0:
                    await record(transaction, _displaced(act, row.id))
            message = f"a tenant has at most {MAX_PER_TENANT:,} connections"
            await require_room(transaction, own, "connections", MAX_PER_TENANT, message)
            await transaction.execute(insert(table).values(values_of(connection, table)))

    async def turn(self, old: Connection, new: Connection) -> bool:
        """Writes the next turn of a connection that was read before; returns False where somebody else was faster."""
        unchanged = matching(connections, tenant=old.tenant, id=old.id, turn=old.turn)
        async with self._database.write() as transaction:
            changed = update(connections).where(unchanged).values(values_of(new, connections))
            return bool((await transaction.execute(changed)).rowcount)

    async def end(self, tenant: str, connection_id: str, *, act: Act | None = None) -> None:
        """Raises NotFound: there is none of this id."""
        this = matching(connections, tenant=tenant, id=connection_id)
        async with self._database.write(act) as transaction:
            if not (await transaction.execute(delete(connections).where(this))).rowcount:
                raise NotFound("Connection not found")

    async def end_of_client(self, tenant: str, client_id: str) -> None:
        """Ends all that a client has connected."""
        async with self._database.write() as transaction:
            await transaction.execute(
                delete(connections).where(matching(connections, tenant=tenant, client_id=client_id))
            )

    async def register(self, tenant: str, values: Mapping[str, Any], now: datetime) -> bool:
        """Stores a client that registers itself, unless there is one of its name; returns whether it is new. Those that
        nobody has connected make room: the ones of more than a day ago, and where there are still too many the oldest.

        Raises:
            NotFound: there is no such tenant, or all of its places are taken by clients that are in use.
        """
        table = clients
        theirs = and_(table.c.tenant == tenant, table.c.name.startswith(REGISTERED))
        used = exists().where(connections.c.tenant == table.c.tenant, connections.c.client_id == table.c.name)
        idle = and_(theirs, ~used)
        async with self._database.write() as transaction:
            owner = select(tenants.c.name).where(tenants.c.name == tenant).with_for_update()
            if (await transaction.execute(owner)).first() is None:
                raise NotFound("Tenant not found")
            same = matching(table, tenant=tenant, name=values["name"])
            if (await transaction.execute(select(table.c.name).where(same))).first() is not None:
                return False
            await transaction.execute(delete(table).where(idle, table.c.changed_at < now - UNUSED))
            count = (await transaction.execute(select(func.count()).select_from(table).where(theirs))).scalar_one()
            if count >= MAX_REGISTERED:
                oldest = select(table.c.name).where(idle).order_by(table.c.changed_at).limit(count - MAX_REGISTERED + 1)
                names = (await transaction.execute(oldest)).scalars().all()
                if not names:
                    raise NotFound("Every place for clients that register themselves is in use")
                await transaction.execute(delete(table).where(theirs, table.c.name.in_(names)))
            await transaction.execute(insert(table).values(tenant=tenant, **values))
        return True


def _displaced(act: Act, connection_id: str) -> Act:
    """The line of a connection that makes room for the one of this act."""
    detail = f"its person has at most {MAX_PER_PERSON}, and a new one"
    return replace(act, action="connection.end", target=f"connections/{connection_id}", detail=detail)


def _of_client(connection: Connection) -> ColumnElement[bool]:
    return matching(
        connections,
        tenant=connection.tenant,
        client_id=connection.client_id,
        issuer=connection.issuer,
        subject=connection.subject,
        backend=connection.backend,
        redirect_uri=connection.redirect_uri,
    )
