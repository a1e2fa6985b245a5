"""The commands `secret-key check` and `secret-key accept`: whether the database was made with this SECRET_KEY."""

import argparse

from app.cli.database import act_of_user, database_here, secret_key_of
from app.domain import DEFAULT_TENANT
from app.storage import Database
from app.storage.secret_key import SecretKeyCheck


def check_secret_key(options: argparse.Namespace) -> int:
    """`trunkline secret-key check`."""
    here = database_here(options, any_key=True)
    secret_key = secret_key_of(here)
    fits = here.run(lambda database: SecretKeyCheck(database, secret_key).fits())
    if fits is None:
        print("the database has no secret key yet: the first start of a gateway decides")
        return 0
    print("the database was made with this secret key" if fits else "the database was made with another secret key")
    return 0 if fits else 1


def accept_secret_key(options: argparse.Namespace) -> int:
    """`trunkline secret-key accept`: from now on the database is that of the present key. Takes back by itself with
    the old key: nothing else is changed."""
    here = database_here(options, any_key=True)
    secret_key = secret_key_of(here)

    async def accept(database: Database) -> bool:
        check = SecretKeyCheck(database, secret_key)
        if await check.fits():
            return False
        await check.accept(act_of_user(DEFAULT_TENANT, "secret_key.accept", ""))
        return True

    if not here.run(accept):
        print("the database was made with this secret key already; nothing was changed")
        return 0
    print(
        "the database is that of this secret key now. API keys and issuers' secrets that were made under another one "
        "are worthless: make them anew. Restart every node that still runs with the old key."
    )
    return 0
