"""A database file that is removed or replaced while it is open: what would be lost is refused."""

import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from app.domain import Tenant
from app.errors import StorageUnavailable
from app.storage.engine import Database
from app.storage.tenants import TenantRepository


def _remove(path: Path) -> None:
    path.unlink()


def _remove_all(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def _replace(path: Path) -> None:
    shutil.copy(path, copy := path.with_name("other.db"))
    copy.rename(path)


def _move_and_link(path: Path) -> None:
    """The log would be beside the link, where nobody looks for it any more."""
    path.rename(moved := path.with_name("moved.db"))
    path.symlink_to(moved)


@pytest.fixture
def path(sqlite_url: str, tmp_path: Path) -> Path:
    """In a folder of its own, which can be removed; with characters that mean something in a URI."""
    path = tmp_path / "data ?#%41" / "test.db"
    path.parent.mkdir()
    shutil.copy(sqlite_url.removeprefix("sqlite:///"), path)
    return path


async def _refuses_all(database: Database, why: str) -> None:
    repository = TenantRepository(database)
    for ask in (
        repository.create(Tenant("lost")),
        repository.get("default"),
        repository.list(limit=5),
        database.check(),
    ):
        with pytest.raises(StorageUnavailable, match=why):
            await ask


@pytest.mark.parametrize("harm", [_remove, _remove_all, _remove_folder, _replace, _move_and_link])
@pytest.mark.parametrize("was_open", [True, False])
async def test_nothing_is_stored_in_a_file_that_is_gone_and_no_empty_one_is_made(
    path: Path, harm: Callable[[Path], None], was_open: bool
):
    database = Database(f"sqlite:///{quote(str(path))}")
    repository = TenantRepository(database)
    if was_open:
        await repository.create(Tenant("before"))
        await repository.get("default")
    harm(path)
    await _refuses_all(database, "removed or replaced while the node ran")
    await database.aclose()
    if harm not in (_replace, _move_and_link):
        assert not path.exists()


def _remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def _remove_index(path: Path) -> None:
    path.with_name(f"{path.name}-shm").unlink()


def _replace_log(path: Path) -> None:
    _remove_log(path)
    path.with_name(f"{path.name}-wal").touch()


@pytest.mark.parametrize("harm", [_remove_log, _remove_index, _replace_log])
async def test_nothing_is_stored_while_a_file_beside_it_is_gone_and_what_was_stored_is_kept_at_the_end(
    path: Path, harm: Callable[[Path], None]
):
    database = Database(f"sqlite:///{quote(str(path))}")
    repository = TenantRepository(database)
    await repository.create(Tenant("before"))
    await repository.get("default")
    harm(path)
    await _refuses_all(database, "beside the database")
    await database.aclose()
    with sqlite3.connect(path) as connection:
        assert [name for (name,) in connection.execute("SELECT name FROM tenants")] == ["before", "default"]
    connection.close()


async def test_the_files_beside_it_are_others_once_all_connections_were_closed(path: Path):
    database = Database(f"sqlite:///{quote(str(path))}")
    for number in range(3):
        await TenantRepository(database).create(Tenant(f"t{number}"))
        await TenantRepository(database).get("default")
        await database.aclose()  # it opens new ones
        assert not path.with_name(f"{path.name}-wal").exists()


async def test_a_link_is_followed_until_it_leads_to_another_file(path: Path):
    link, other = path.with_name("link.db"), path.with_name("other.db")
    shutil.copy(path, other)
    link.symlink_to(path)
    database = Database(f"sqlite:///{quote(str(link))}")
    await TenantRepository(database).create(Tenant("before"))
    assert path.with_name(f"{path.name}-wal").exists()
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        await TenantRepository(database).create(Tenant("lost"))
    link.unlink()
    link.symlink_to(path)
    await TenantRepository(database).create(Tenant("later"))
    await database.aclose()


async def test_a_change_that_has_begun_is_not_stored_either(path: Path):
    database = Database(f"sqlite:///{quote(str(path))}")

    async def change() -> None:
        async with database.write() as connection:
            await connection.exec_driver_sql("DELETE FROM tenants")
            path.unlink()

    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        await change()
    await database.aclose()


async def test_a_file_that_was_emptied_is_damaged_until_its_content_is_back(path: Path):
    content, database = path.read_bytes(), Database(f"sqlite:///{quote(str(path))}")
    path.write_bytes(b"")
    with pytest.raises(StorageUnavailable, match="damaged"):
        await TenantRepository(database).get("default")
    path.write_bytes(content)
    await TenantRepository(database).create(Tenant("later"))
    await database.aclose()


async def test_a_database_that_is_not_there_is_not_made(tmp_path: Path):
    before = set(threading.enumerate())
    database = Database(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(StorageUnavailable, match="cannot be opened"):
        await database.ping()
    await database.aclose()
    assert not list(tmp_path.iterdir())
    with anyio.fail_after(20):
        while set(threading.enumerate()) - before:
            await anyio.sleep(0.001)  # a thread has no event to wait for
