"""SecretKeyCheck: whether the database was made with this secret key. With another one every API key would be refused
as forged, and no sealed secret could be opened.

One row holds a salted PBKDF2 of the key. It is slow on purpose, some 25 ms: with a copy of the database an attacker
could use it to test guesses of a weak key.
"""

import contextlib
import hashlib
import hmac
import secrets
from datetime import UTC, datetime

from sqlalchemy import insert, select, update

from app.errors import Conflict, SettingsError, StorageReadOnly
from app.storage._tables import secret_key_check
from app.storage.audit import Act
from app.storage.engine import Database

ITERATIONS = 100_000
SALT_BYTES = 16
_LABEL = b"trunkline database key check 1"
_ROW = 1  # there is no other


class SecretKeyCheck:
    """Compares one secret key with that row."""

    def __init__(self, database: Database, secret_key: bytes) -> None:
        self._database, self._key = database, secret_key

    async def fits(self) -> bool | None:
        """Whether it is the key of this database; None if the database has no key yet."""
        async with self._database.read() as connection:
            known = (await connection.execute(select(secret_key_check.c.value))).scalar_one_or_none()
        return None if known is None else hmac.compare_digest(known, _value(self._key, known[:SALT_BYTES]))

    async def require(self) -> None:
        """Raises SettingsError where the database has another key; a database without a key accepts any."""
        if await self.fits() is False:
            raise SettingsError(
                f"TRUNKLINE_SECRET_KEY: the database at {self._database.place} was made with another one. Start with "
                "that one: without it every API key and every sealed secret is worthless. If the key was changed on "
                'purpose, run `trunkline secret-key accept`: docs/operations.md, "Keys and rotation"'
            )

    async def claim(self) -> None:
        """Makes this the key of a database that has none. Raises SettingsError where it has another one."""
        if await self.fits() is None:
            # Conflict: another process was quicker. Read-only: a standby gets its key once it accepts changes.
            with contextlib.suppress(Conflict, StorageReadOnly):
                async with self._database.write() as connection:
                    await connection.execute(insert(secret_key_check).values(self._row()))
        await self.require()

    async def accept(self, act: Act) -> None:
        """Makes this the key of the database, whatever it was before. Running nodes do not check again."""
        async with self._database.write(act) as connection:
            changed = await connection.execute(update(secret_key_check).values(self._row()))
            if not changed.rowcount:
                await connection.execute(insert(secret_key_check).values(self._row()))

    def _row(self) -> dict[str, object]:
        return {"id": _ROW, "value": _value(self._key, secrets.token_bytes(SALT_BYTES)), "made_at": datetime.now(UTC)}


def _value(secret_key: bytes, salt: bytes) -> bytes:
    """The salt, and the hash of the key with it."""
    return salt + hashlib.pbkdf2_hmac("sha256", secret_key, _LABEL + salt, ITERATIONS)
