"""A home for each tenant, seen from outside: where its processes are, what they find there, and what becomes of it.

It is theirs together only without a sandbox: with one each process has its own, or its principal (test_kept_homes.py).
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jail.sandbox.uids import uid_of
from tests.integration.gateway import ECHO, Gateway, until
from tests.integration.wire import wire
from tests.programs import run_program

UNCONFINED = {"mode": "off"}


def where(gateway: Gateway) -> list[Path]:
    """The working directories of the backends that run, each once."""
    return sorted({Path(each.cwd()) for each in gateway.backends()})


async def lived(gateway: Gateway, tenant: str) -> Path:
    """The directory that a process of this tenant works in; it has ended since."""
    await until(lambda: not gateway.backends(), 20)
    async with wire(gateway.endpoint(ECHO, tenant=tenant, sandbox=UNCONFINED)) as session:
        assert await session.call("echo", text="hello")
        (directory,) = where(gateway)
    await until(lambda: not gateway.backends(), 20)
    return directory


@pytest.fixture
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


async def test_each_tenant_has_its_own_and_its_backends_share_it(gateway: Gateway) -> None:
    first, second = await lived(gateway, gateway.add_tenant("acme")), await lived(gateway, gateway.add_tenant("other"))
    assert first != second
    assert await lived(gateway, "acme") == first  # another backend
    for home in (first, second):
        assert stat.S_IMODE(home.stat().st_mode) == stat.S_IMODE(home.parent.stat().st_mode) == 0o700
        assert sorted(os.listdir(home / "..")) == ["home", "tmp"]
        assert gateway.data_dir not in (home.parent, home.parent.parent)  # where the key and the database are


async def test_a_tenant_made_anew_finds_nothing_of_the_one_before(gateway: Gateway) -> None:
    before = await lived(gateway, gateway.add_tenant("acme"))
    (before / "secret").write_text("of the first acme")
    async with wire(gateway.endpoint(ECHO, tenant="acme")):
        gateway.api("DELETE", "/tenants/acme")
        gateway.add_tenant("acme")
        after = await lived(gateway, "acme")  # while what the first one had may still be ending
    assert after != before
    assert os.listdir(after) == []
    assert (before / "secret").exists()  # until somebody removes it


async def test_the_home_of_a_deleted_tenant_is_listed_and_can_be_removed(gateway: Gateway) -> None:
    home = await lived(gateway, gateway.add_tenant("acme"))
    (home / "file").write_bytes(b"x" * 100)
    async with wire(gateway.endpoint(ECHO, tenant="acme")):
        (found,) = gateway.cli("homes")
        assert found == {
            "name": home.parent.name, "tenant": "acme", "state": "in_use", "uid": found["uid"], "bytes": 100,
            "path": str(home.parent),
        }  # fmt: skip
    refused = run_program(["homes", "--remove", home.parent.name], gateway.environment)
    assert refused.returncode == 1
    assert "the tenant acme, which exists" in refused.stderr
    gateway.api("DELETE", "/tenants/acme")
    await until(lambda: gateway.cli("homes")[0]["state"] == "tenant_deleted", 20)
    assert gateway.cli("homes", "--remove", home.parent.name) == []
    assert not home.parent.exists()
    missing = run_program(["homes", "--remove", "../x"], gateway.environment)
    assert missing.returncode == 1


async def test_each_home_is_listed_with_the_user_of_its_tenant(gateway: Gateway) -> None:
    homes = [(await lived(gateway, gateway.add_tenant(name))).parent for name in ("acme", "other")]
    uid = uid_of(homes[0].parent, homes[0].name)  # as a node that is root would do
    assert [each["uid"] for each in gateway.cli("homes")] == [uid, None]
    title, first, second = run_program(["homes"], gateway.environment).stdout.splitlines()
    at = title.index("UID")
    assert (first[at:].split()[0], second[at:].split()[0]) == (str(uid), "-")


async def test_homes_can_be_somewhere_else(tmp_path: Path, start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(HOMES_DIR=str(tmp_path / "elsewhere"))
    home = await lived(gateway, gateway.add_tenant("acme"))
    assert home.parent.parent == tmp_path / "elsewhere"
    assert not (gateway.data_dir / "homes").exists()


async def test_a_directory_of_its_own_is_checked_used_and_named_when_it_is_gone(gateway: Gateway) -> None:
    tenant = gateway.add_tenant("acme")
    there = await lived(gateway, tenant) / "notes"
    endpoint = gateway.endpoint(ECHO, tenant=tenant, cwd="notes", sandbox=UNCONFINED)
    path = f"/tenants/{tenant}/backends/{endpoint.name}"
    failure = gateway.api("POST", path + ":check")["failure"]
    assert (failure["step"], failure["reason"]) == ("start", "backend_exited")
    assert failure["detail"] == "No such file or directory: cwd 'notes'"
    there.mkdir()
    assert gateway.api("POST", path + ":check")["ok"]
    async with wire(endpoint):
        assert where(gateway) == [there]
    gateway.api("PATCH", path, {"cwd": None})
    async with wire(endpoint) as session:
        assert await session.call("echo", text="hello")
        assert there.parent in where(gateway)
