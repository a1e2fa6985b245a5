"""Toolsets in the database, and the names that they share with backends."""

from dataclasses import replace

import anyio
import pytest

from app.domain import BackendSpec, Member, Selection, Timeouts, Toolset
from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import BackendNotFound, ConcurrentChange, Conflict, NotFound
from app.storage.tools.toolsets import ToolsetRepository

SELECTION = Selection(("a*",), ("b",), {"c": "d"}, {"e": "f"})
MEMBERS = (Member("echo", "e_", SELECTION), Member("gone", ""))
TOOLSET = BackendSpec(
    "acme",
    "all",
    "",
    timeouts=Timeouts(call_s=7),
    toolset=Toolset("All", "Use it.", MEMBERS, "search", ("a*",), False, ("g*",)),
    access=(AccessEntry(Who(person="bob"), ("e_*",), limits=CallLimits(60)), AccessEntry(Who(client="c"), ("x",))),
)


@pytest.fixture
def toolsets(database, tenants):
    return ToolsetRepository(database)


async def test_a_toolset_comes_back_as_it_was_stored(toolsets):
    created = await toolsets.create("acme", TOOLSET)
    assert replace(created, home="") == TOOLSET
    assert await toolsets.get("acme", "all") == created == (await toolsets.list("acme", limit=9))[0]
    changed = await toolsets.replace("acme", replace(created, enabled=False, reason="old"))
    assert await toolsets.find("acme", "all") == changed
    with pytest.raises(ConcurrentChange):
        await toolsets.replace("acme", created)
    await toolsets.delete("acme", "all", version=2)
    with pytest.raises(NotFound):
        await toolsets.get("acme", "all")


async def test_of_another_tenant_there_is_nothing(toolsets):
    await toolsets.create("acme", TOOLSET)
    assert await toolsets.list("zenith", limit=9) == []
    with pytest.raises(BackendNotFound):
        await toolsets.find("zenith", "all")
    with pytest.raises(NotFound):
        await toolsets.create("nobody", TOOLSET)


async def test_a_backend_and_a_toolset_never_have_one_name(toolsets, backends, spec):
    await backends.create("acme", spec)
    with pytest.raises(Conflict):
        await toolsets.create("acme", replace(TOOLSET, name="echo"))
    await toolsets.create("acme", TOOLSET)
    with pytest.raises(Conflict):
        await backends.create("acme", replace(spec, name="all"))
    await toolsets.create("zenith", replace(TOOLSET, name="echo"))


async def test_of_two_that_want_a_name_at_once_one_gets_it(toolsets, backends, spec):
    outcomes: list[str] = []

    async def take(create, value):
        try:
            await create("acme", value)
            outcomes.append("made")
        except Conflict:
            outcomes.append("taken")

    for number in range(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, toolsets.create, replace(TOOLSET, name=f"n{number}"))
            tasks.start_soon(take, backends.create, replace(spec, name=f"n{number}"))
    assert sorted(outcomes) == ["made"] * 10 + ["taken"] * 10


async def test_a_backends_selection_comes_back(backends, spec):
    created = await backends.create("acme", replace(spec, selection=SELECTION))
    assert (await backends.get("acme", "echo")).selection == SELECTION
    changed = await backends.replace("acme", replace(created, selection=Selection()))
    assert await backends.get("acme", "echo") == changed
