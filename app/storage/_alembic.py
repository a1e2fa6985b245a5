"""Applies migrations. Imported only when there are some: it takes 0.1 s and 10 MB."""

from collections.abc import Callable, Sequence
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def config(migrations: Path, connection: Connection | None = None) -> Config:
    """Alembic's configuration; `migrations/env.py` takes the connection from it."""
    settings = Config()
    settings.set_main_option("script_location", str(migrations).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def apply(migrations: Path, connection: Connection, revision: str | None, begin: Callable[[str], None]) -> None:
    """All that come after this revision. `begin` is told what each is about."""
    settings = config(migrations, connection)
    settings.attributes["on_version_apply"] = _announcing(_missing(migrations, revision), begin)
    command.upgrade(settings, "head")


def _missing(migrations: Path, revision: str | None) -> list[str]:
    """What the migrations after this one are about, in order."""
    missing = ScriptDirectory(str(migrations)).iterate_revisions("head", revision or "base")
    return [each.doc.rstrip(".") for each in missing][::-1]


def _announcing(subjects: Sequence[str], begin: Callable[[str], None]) -> Callable[..., None]:
    """Tells what the first migration is about, and after each, when Alembic calls it, what the next one is about."""
    steps = (f"migrating {number} of {len(subjects)}: {subject}" for number, subject in enumerate(subjects, 1))

    def migrated(**_: object) -> None:
        begin(next(steps, "saving what was migrated"))

    migrated()
    return migrated
