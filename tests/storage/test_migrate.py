"""Migrations: forward, back, twice, at once, and equal to the tables this version declares."""

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command

from app.errors import SchemaMismatch, StorageUnavailable
from app.storage import migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def fresh(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_fresh_database_gets_the_schema_and_the_default_tenant(fresh, path):
    migrate.upgrade(fresh)
    migrate.check(fresh)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name, limits FROM tenants").fetchall() == [("default", "{}")]
    connection.close()


def test_the_files_are_for_the_owner_only(fresh, path):
    migrate.upgrade(fresh)
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


def test_upgrading_twice_changes_nothing(fresh, path):
    migrate.upgrade(fresh)
    before = path.read_bytes()
    migrate.upgrade(fresh)
    assert path.read_bytes() == before


def test_several_processes_may_start_at_once(fresh):
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(migrate.upgrade, fresh) for _ in range(4)]:
            each.result()
    migrate.check(fresh)


def test_the_migrations_lead_to_the_declared_tables(url):
    with migrate._connection(url) as connection:
        command.check(migrate.config(connection))


def test_down_and_up_again(url):
    with migrate._connection(url) as connection:
        command.downgrade(migrate.config(connection), "base")
    with pytest.raises(SchemaMismatch, match="schema none, this version needs"):
        migrate.check(url)
    migrate.upgrade(url)
    migrate.check(url)


def test_a_database_of_a_newer_version_is_refused_and_left_alone(url, path):
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for look in (migrate.upgrade, migrate.check):
        with pytest.raises(SchemaMismatch, match="9999, which this version does not know"):
            look(url)


def test_what_is_no_database_is_unavailable_storage(fresh, path, tmp_path):
    path.write_text("this is not a database, but it is long enough to look like a file with a header" * 10)
    with pytest.raises(StorageUnavailable, match="file is not a database"):
        migrate.upgrade(fresh)
    with pytest.raises(StorageUnavailable, match="cannot write"):
        migrate.upgrade(f"sqlite:///{tmp_path}/nowhere/test.db")
