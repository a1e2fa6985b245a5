"""People who have signed in with an identity provider, in the database: what it said of them, and its refresh tokens,
sealed. Only providers that give one can be asked again."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, delete, insert, select, update

from app.domain import Person
from app.storage._rows import matching, object_of, values_of
from app.storage._tables import people
from app.storage.engine import Database

KEPT = timedelta(days=90)  # after it was asked last: by then nobody uses a connection of this person
Identity = tuple[str, str, str]


class PersonRepository:
    """People by their identity: tenant, issuer, subject."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, identity: Identity) -> Person | None:
        """The person, if one of this identity has signed in."""
        row = await self._database.row(select(people).where(_row(identity)))
        return None if row is None else object_of(Person, row)

    async def of_subject(self, tenant: str, subject: str) -> Sequence[Person]:
        """Whoever has signed in under this name, of all issuers."""
        rows = await self._database.rows(select(people).where(matching(people, tenant=tenant, subject=subject)))
        return [object_of(Person, row) for row in rows]

    async def put(self, person: Person) -> None:
        """Stores what is known since this sign-in; what was known before is forgotten, and so is whom nobody has asked
        about for long."""
        table = people
        forgotten = and_(table.c.tenant == person.tenant, table.c.asked_at < person.asked_at - KEPT)
        async with self._database.write() as transaction:
            await transaction.execute(delete(table).where(forgotten | _row(person.identity)))
            await transaction.execute(insert(table).values(values_of(person, table)))

    async def take_question(self, person: Person, now: datetime) -> bool:
        """Whether the caller is to ask the provider now: nobody else has since the person was read."""
        unchanged = and_(_row(person.identity), people.c.asked_at == person.asked_at)
        async with self._database.write() as transaction:
            asked = update(people).where(unchanged).values(asked_at=now)
            return bool((await transaction.execute(asked)).rowcount)

    async def told(self, person: Person, asked_at: datetime) -> None:
        """Writes what the provider has answered to the question of this time (`take_question`). Does nothing if the
        person is gone, or has signed in since: that is newer."""
        unchanged = and_(_row(person.identity), people.c.asked_at == asked_at)
        async with self._database.write() as transaction:
            await transaction.execute(update(people).where(unchanged).values(values_of(person, people)))


def _row(identity: Identity) -> ColumnElement[bool]:
    tenant, issuer, subject = identity
    return matching(people, tenant=tenant, issuer=issuer, subject=subject)
