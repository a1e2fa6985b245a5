"""What Alembic runs. `app.storage.migrate` hands it a connection; the `alembic` command uses the node's settings."""

import os
from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine

from app.settings.settings import Settings
from app.storage._tables import metadata


def run(connection: Connection, **more: Any) -> None:
    """Runs the migrations in one transaction."""
    # SQLite alters a table by copying it: "batch" migrations work on both dialects.
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True, **more)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given, on_version_apply=context.config.attributes.get("on_version_apply"))
else:
    engine = create_engine(Settings.from_env(os.environ).database_url)
    with engine.begin() as connection:
        run(connection)
    engine.dispose()
