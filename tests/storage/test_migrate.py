"""Migrations: forward, back, twice, at once, with data, and equal to the tables this version declares."""

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import exc, text

from app.domain import BackendSpec, Limits, Member, Person, ProcessLimits, Sandbox, Tenant, Toolset
from app.domain.resources.access import AccessEntry, Who
from app.errors import SchemaMismatch, SettingsError, StorageUnavailable
from app.storage import migrate
from app.storage._alembic import config
from app.storage._tables import metadata
from app.storage.access.people import PersonRepository
from app.storage.backends import BackendRepository
from app.storage.call_counts import CallCountRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from app.storage.tools.toolsets import ToolsetRepository
from tests.databases import SEALER
from tests.postgres import new_database

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT = NOW.isoformat()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def fresh_file(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with nothing in it."""
    if request.param == "sqlite":
        yield request.getfixturevalue("fresh_file")
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        yield url


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """What the last one finds."""
    with migrate._connection(url) as connection:
        results = [connection.execute(text(each)) for each in statements]
        return [tuple(row) for row in results[-1]] if results[-1].returns_rows else []


def test_a_fresh_database_gets_the_schema_and_the_default_tenant(fresh):
    with pytest.raises(SchemaMismatch, match="schema none, this version needs"):
        migrate.check(fresh)
    migrate.upgrade(fresh)
    migrate.check(fresh)
    assert run(fresh, "SELECT name FROM tenants") == [("default",)]


def test_the_files_are_for_the_owner_only(fresh_file, path):
    migrate.upgrade(fresh_file)
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


def test_upgrading_twice_changes_nothing(fresh_file, path):
    migrate.upgrade(fresh_file)
    before = path.read_bytes()
    migrate.upgrade(fresh_file)
    assert path.read_bytes() == before


def test_it_says_which_migration_runs_and_of_how_many(fresh):
    said = list[str]()
    migrate.upgrade(fresh, said.append)
    count = len(said) - 2
    first = f"migrating 1 of {count}: Tenants, backends, API keys; and the tenant `default`"
    assert said[:2] == ["waiting for the database", first]
    assert said[-2].startswith(f"migrating {count} of {count}: ")
    assert said[-1] == "saving what was migrated"
    with migrate._connection(fresh) as connection:
        command.downgrade(config(migrate.MIGRATIONS, connection), "-2")
    said.clear()
    migrate.prepare(fresh, said.append) if fresh.startswith("sqlite") else migrate.upgrade(fresh, said.append)
    assert [each.partition(":")[0] for each in said[1:-1]] == ["migrating 1 of 2", "migrating 2 of 2"]
    said.clear()
    migrate.upgrade(fresh, said.append)
    assert said == ["waiting for the database"]


def test_several_processes_may_start_at_once(fresh):
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(migrate.upgrade, fresh) for _ in range(4)]:
            each.result()
    migrate.check(fresh)
    assert run(fresh, "SELECT count(*) FROM alembic_version") == [(1,)]


def test_a_node_migrates_its_own_file_and_only_looks_at_a_server(fresh):
    if fresh.startswith("sqlite"):
        migrate.prepare(fresh)
    else:
        with pytest.raises(SchemaMismatch) as caught:
            migrate.prepare(fresh)
        assert "Run `trunkline migrate`" in str(caught.value.hint)
        migrate.upgrade(fresh)
    migrate.prepare(fresh)
    migrate.check(fresh)


def test_the_migrations_lead_to_the_declared_tables(url):
    with migrate._connection(url) as connection:
        command.check(config(migrate.MIGRATIONS, connection))


def test_each_file_is_named_by_its_revision():
    found = [each.revision for each in ScriptDirectory(str(migrate.MIGRATIONS)).walk_revisions()]
    assert migrate._revisions() == found[::-1]


def test_down_and_up_again(url, dialect):
    with migrate._connection(url) as connection:
        command.downgrade(config(migrate.MIGRATIONS, connection), "base")
    with pytest.raises(SchemaMismatch, match="schema none, this version needs"):
        migrate.check(url)
    catalogue = "sqlite_master WHERE type IN ('table', 'trigger')"
    if dialect == "postgresql":
        catalogue = "information_schema.routines WHERE routine_schema = 'public'"
    left = run(url, f"SELECT {'name' if dialect == 'sqlite' else 'routine_name'} FROM {catalogue}")
    assert {name for (name,) in left} <= {"alembic_version", "sqlite_sequence"}
    migrate.upgrade(url)
    migrate.check(url)


def test_one_step_down_and_up_keeps_every_row_of_the_step_before(url):
    run(url, f"INSERT INTO tenants (name, limits, version, created_at) VALUES ('acme', '{{}}', 7, '{AT}')")
    for _ in range(2):
        with migrate._connection(url) as connection:
            command.downgrade(config(migrate.MIGRATIONS, connection), "-1")
        migrate.upgrade(url)
    assert run(url, "SELECT name, version FROM tenants ORDER BY name") == [("acme", 7), ("default", 1)]


def test_going_back_leaves_no_issuer_of_the_platform_that_would_open_the_default_tenant(url):
    """The older version knows no list: to it such a row is an issuer of the tenant `default`, for everybody."""
    row = f"'default', '{{}}', '[\"RS256\"]', '[]', '{{}}', '[\"platform:admin\"]', '{AT}', 1"
    columns = "tenant, issuer, algorithms, audience, claims, max_scopes, created_at, version"
    plain, listed = (row.replace("{}", name, 1) for name in ("plain", "listed"))
    run(
        url,
        f"INSERT INTO issuers (id, {columns}) VALUES ('a', {plain})",
        f"INSERT INTO issuers (id, {columns}, tenants_claim) VALUES ('b', {listed}, 'groups')",
        "INSERT INTO issuer_tenants (issuer_id, value, tenant, scopes) VALUES ('b', 'x', 'default', '[]')",
    )
    with migrate._connection(url) as connection:
        command.downgrade(config(migrate.MIGRATIONS, connection), "0008")
    assert run(url, "SELECT id FROM issuers") == [("a",)]
    migrate.upgrade(url)
    assert run(url, "SELECT id, tenants_claim FROM issuers") == [("a", None)]


BEFORE_SANDBOX = "name, command, args, env, isolation, recovery, warm, max_processes, timeouts, enabled, version"


def old_backend(name: str) -> str:
    """A row of a version without sandboxes."""
    values = f"'acme', '{name}', 'cat', '[]', '{{}}', 'session', 'end', 0, 1, '{{}}', true, 3, '{AT}'"
    return f"INSERT INTO backends (tenant, {BEFORE_SANDBOX}, created_at) VALUES ({values})"


def to(url: str, revision: str) -> None:
    with migrate._connection(url) as connection:
        command.downgrade(config(migrate.MIGRATIONS, connection), revision)


async def test_a_backend_of_before_has_its_network_and_no_limits_and_a_new_one_says_what_it_wants(url):
    to(url, "0010")
    limits = [("acme", '{"sessions": 3, "memory_mb": 512}'), ("b", '{"memory_mb": 513}'), ("c", "{}")]
    tenants = [f"('{name}', '{each}', 7, '{AT}')" for name, each in limits]
    run(
        url,
        f"INSERT INTO tenants (name, limits, version, created_at) VALUES {', '.join(tenants)}",
        old_backend("old"),
    )
    migrate.upgrade(url)
    database = Database(url)
    try:
        found = {each.name: each for each in await TenantRepository(database).list(limit=9)}
        spec = await BackendRepository(database, SEALER).get("acme", "old")
    finally:
        await database.aclose()
    assert found["acme"].limits == Limits(sessions=3, memory_mb=None)
    assert [found[name].limits.memory_mb for name in ("b", "c")] == [513, None]
    assert [(each.sandbox_exempt, each.version) for each in found.values()] == [(False, 7)] * 3 + [(False, 1)]
    assert (spec.sandbox, spec.limits) == (Sandbox("auto", network="host"), ProcessLimits(*[None] * 5))
    assert (spec.state, spec.version, spec.enabled) == ("none", 3, True)
    with pytest.raises((StorageUnavailable, exc.DBAPIError), match=r"(?i)not.null"):
        run(url, old_backend("without_a_sandbox"))


async def test_going_back_switches_off_what_may_only_run_in_a_sandbox(url):
    database = Database(url)
    try:
        await TenantRepository(database).create(Tenant("acme"))
        for mode in ("auto", "require", "off"):
            spec = BackendSpec("acme", mode, "cat", sandbox=Sandbox(mode))
            await BackendRepository(database, SEALER).create("acme", spec)
    finally:
        await database.aclose()
    to(url, "0010")
    rows = run(url, "SELECT name, enabled, off_by_platform, reason FROM backends ORDER BY name")
    reason = "its sandbox is required, and this version has none"
    assert rows == [("auto", True, False, ""), ("off", True, False, ""), ("require", False, True, reason)]
    migrate.upgrade(url)
    assert run(url, "SELECT name FROM backends WHERE enabled ORDER BY name") == [("auto",), ("off",)]


async def test_backends_of_before_are_for_all_who_may_connect_and_going_back_loses_lists_only(url):
    database = Database(url)
    access = (AccessEntry(Who(everyone=True), ("*",)),)
    try:
        await TenantRepository(database).create(Tenant("acme"))
        await BackendRepository(database, SEALER).create("acme", BackendSpec("acme", "echo", "cat", access=access))
        toolset = BackendSpec("acme", "all", "", toolset=Toolset(members=(Member("echo", ""),)), access=access)
        await ToolsetRepository(database).create("acme", toolset)
        person = Person("acme", "https://idp.example", "bob", frozenset({"x"}), NOW, None, frozenset({"a"}))
        await PersonRepository(database).put(person)
        await CallCountRepository(database).add([("a", 1, 1 << 40)])
        to(url, "0030")
        migrate.upgrade(url)
        spec = await BackendRepository(database, SEALER).get("acme", "echo")
        again = await ToolsetRepository(database).get("acme", "all")
        assert (spec.access, again.access, again.toolset) == ((), (), toolset.toolset)
        assert await PersonRepository(database).find(person.identity) == replace(person, groups=frozenset())
        assert await CallCountRepository(database).add([("a", 1, 1 << 40)]) == [1]
    finally:
        await database.aclose()


def test_the_audit_trail_only_grows(url, dialect):
    values = f"'{AT}', 'acme', 'default', 'key', 'k', 'tenant.create', '', '', '', NULL"
    columns = [column.name for column in metadata.tables["audit"].columns if column.name != "id"]
    run(url, f"INSERT INTO audit ({', '.join(columns)}) VALUES ({values})")
    attempts = ["UPDATE audit SET action = 'x'", "DELETE FROM audit"]
    if dialect == "postgresql":
        attempts += ["TRUNCATE audit", "DELETE FROM audit WHERE id < 0"]
    for attempt in attempts:
        with pytest.raises((StorageUnavailable, exc.DBAPIError), match="the audit trail only grows"):
            run(url, attempt)
    assert run(url, "SELECT action FROM audit") == [("tenant.create",)]


def test_a_database_of_a_newer_version_is_refused_and_left_alone(fresh):
    migrate.upgrade(fresh)
    run(fresh, "UPDATE alembic_version SET version_num = '9999'")
    for look in (migrate.upgrade, migrate.check, migrate.prepare):
        with pytest.raises(SchemaMismatch, match="9999, which this version does not know"):
            look(fresh)


def test_a_file_that_is_no_database_is_a_wrong_setting_and_nothing_is_left_beside_it(fresh_file, path, tmp_path):
    path.write_text("this is not a database, but it is long enough to look like a file with a header" * 10)
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_DATABASE_URL: '.*' is not a SQLite database$"):
        migrate.upgrade(fresh_file)
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_DATABASE_URL: '.*' is in no directory that exists$"):
        migrate.upgrade(f"sqlite:///{tmp_path}/nowhere/test.db")
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_DATABASE_URL: '.*' is a directory; it must be a file$"):
        migrate.upgrade(f"sqlite:///{path.parent}")
    assert not [*path.parent.glob("*.migrating"), *path.parent.parent.glob("*.migrating")]
    with pytest.raises(StorageUnavailable, match="file is not a database"):
        migrate.check(fresh_file)


def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(StorageUnavailable, match="the database cannot be used: ") as caught:
        migrate.check("postgresql://somebody:hunter2@127.0.0.1:1/none")
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
