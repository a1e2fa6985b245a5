"""BackendDirectory: what it remembers is never older than the last change it heard of."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.domain import BackendSpec, Tenant
from app.errors import StorageUnavailable
from app.sessions.directory import MAX_LOADS, BackendDirectory

SPEC = BackendSpec("acme", "echo", "echo-server")


class Stores:
    """One backend; something happens each time that it is asked for."""

    def __init__(self) -> None:
        self.spec, self.asked = SPEC, 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def backend(self, tenant: str, name: str) -> BackendSpec:
        found = self.spec
        self.asked += 1
        self.meanwhile()
        return found

    async def tenant(self, name: str) -> Tenant:
        return Tenant(name)


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def directory(stores: Stores) -> BackendDirectory:
    return BackendDirectory(stores.backend, stores.tenant)


async def test_what_was_read_before_a_change_is_read_again(directory: BackendDirectory, stores: Stores) -> None:
    changed = replace(SPEC, version=2)

    def change() -> None:
        if stores.asked == 1:
            stores.spec = changed
            directory.forget("acme", "echo")

    stores.meanwhile = change
    assert (await directory.find("acme", "echo"))[0] is changed
    assert stores.asked == 2


@pytest.mark.parametrize("change", ["the tenant", "everything"])
async def test_so_is_what_was_read_before_its_tenant_changed(
    directory: BackendDirectory, stores: Stores, change: str
) -> None:
    def forget() -> None:
        if stores.asked == 1:
            directory.forget("acme") if change == "the tenant" else directory.forget_everything()

    stores.meanwhile = forget
    await directory.find("acme", "echo")
    assert stores.asked == 2


async def test_changes_of_other_backends_are_no_reason_to_read_again(
    directory: BackendDirectory, stores: Stores
) -> None:
    def forget() -> None:
        directory.forget("acme", "other")
        directory.forget("initech")

    stores.meanwhile = forget
    await directory.find("acme", "echo")
    assert stores.asked == 1


async def test_a_backend_that_changes_each_time_is_given_up_after_a_while(
    directory: BackendDirectory, stores: Stores
) -> None:
    stores.meanwhile = lambda: directory.forget("acme", "echo")
    with pytest.raises(StorageUnavailable, match="'echo' of 'acme' changes faster"):
        await directory.find("acme", "echo")
    assert stores.asked == MAX_LOADS
    stores.meanwhile = lambda: None
    await directory.find("acme", "echo")
    await directory.find("acme", "echo")
    assert stores.asked == MAX_LOADS + 1
