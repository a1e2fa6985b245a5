"""The row that says with which secret key a database was made, on SQLite and PostgreSQL."""

from datetime import UTC, datetime

import anyio
import pytest
from sqlalchemy import select

from app.errors import SettingsError
from app.storage._tables import audit, secret_key_check
from app.storage.audit import Act
from app.storage.engine import Database, place_of
from app.storage.secret_key import SALT_BYTES, SecretKeyCheck

ONE, TWO = b"\1" * 32, b"\2" * 32


async def rows(database: Database) -> list[bytes]:
    async with database.read() as connection:
        return list((await connection.execute(select(secret_key_check.c.value))).scalars())


async def test_whoever_comes_first_decides(database):
    check = SecretKeyCheck(database, ONE)
    assert await check.fits() is None
    await check.require()
    await check.claim()
    await check.claim()
    assert await check.fits() is True
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_SECRET_KEY: the database at .* was made with another one"):
        await SecretKeyCheck(database, TWO).claim()
    assert await check.fits() is True
    assert len(await rows(database)) == 1


async def test_of_many_first_starts_at_once_one_key_wins(database):
    keys = [bytes([number]) * 32 for number in range(6)]
    outcomes: list[bool] = []

    async def claim(key: bytes) -> None:
        try:
            await SecretKeyCheck(database, key).claim()
        except SettingsError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(claim, key)
    assert sorted(outcomes) == [False] * 5 + [True]
    assert len(await rows(database)) == 1


async def test_a_change_on_purpose_is_in_the_trail(database):
    await SecretKeyCheck(database, ONE).claim()
    act = Act("default", ("default", "cli", "uid 0"), "secret_key.accept", "", datetime.now(UTC))
    await SecretKeyCheck(database, TWO).accept(act)
    assert await SecretKeyCheck(database, TWO).fits() is True
    assert await SecretKeyCheck(database, ONE).fits() is False
    async with database.read() as connection:
        actions = (await connection.execute(select(audit.c.action))).scalars().all()
    assert actions == ["secret_key.accept"]


async def test_the_row_is_salted_and_holds_nothing_of_the_key(database):
    await SecretKeyCheck(database, ONE).claim()
    (first,) = await rows(database)
    await SecretKeyCheck(database, ONE).accept(Act("default", ("", "", ""), "a", "", datetime.now(UTC)))
    (second,) = await rows(database)
    assert len(first) == SALT_BYTES + 32
    assert first[:SALT_BYTES] != second[:SALT_BYTES]
    assert first[SALT_BYTES:] != second[SALT_BYTES:]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:////srv/a.db", "/srv/a.db"),
        ("postgresql://somebody:hunter2@db.example:5432/gw", "postgresql://db.example:5432/gw"),
        ("postgresql:///gw", "postgresql:///gw"),
    ],
)
def test_the_place_of_a_database_has_no_password(url, place):
    assert place_of(url) == place
