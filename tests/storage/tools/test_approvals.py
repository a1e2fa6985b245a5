"""What persons have approved of tools, in the database."""

from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest
from sqlalchemy import select

from app.errors import BackendNotFound, NotFound
from app.storage._tables import audit
from app.storage.audit import Act
from app.storage.tools.approvals import Approval, ApprovalRepository, Approvals, Judgement, Overtaken
from app.storage.tools.catalog import CatalogRepository

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOBODY = Approvals("warn", "ask", {})
ADD = Approval("add", b"{}", None, "key a", NOW)


@pytest.fixture
async def approvals(database, backends, spec):
    await backends.create("acme", replace(spec, pin="warn", pin_minor="ask"))
    return ApprovalRepository(database)


async def say(approvals, *changed):
    await approvals.put("acme", "echo", changed, Judgement({}, await approvals.get("acme", "echo")))


async def test_what_is_said_of_a_tool_replaces_what_was_said_before(approvals):
    reject = Approval("rm", None, "f" * 64, "key b", NOW)
    await say(approvals, ADD, reject)
    found = await approvals.get("acme", "echo")
    assert (found.policy, found.minor, found.tools) == ("warn", "ask", {"add": ADD, "rm": reject})
    later = replace(ADD, rejected="e" * 64)
    await say(approvals, later, Approval("rm", None, None, "key b", NOW))
    assert (await approvals.get("acme", "echo")).tools == {"add": later}


async def test_it_goes_with_its_backend_and_needs_one(approvals, backends):
    await say(approvals, ADD)
    await backends.delete("acme", "echo")
    with pytest.raises(BackendNotFound):
        await approvals.get("acme", "echo")
    with pytest.raises(NotFound):
        await approvals.put("acme", "echo", [ADD], Judgement({}, NOBODY))
    with pytest.raises(BackendNotFound):
        await approvals.get("zenith", "echo")


async def revision_of(catalog: CatalogRepository) -> int:
    return (await catalog.get("acme", ["echo"]))["echo"].revision


async def test_what_follows_is_stored_with_what_is_said_or_neither(approvals, database, backends):
    catalog = CatalogRepository(database)
    await catalog.put("acme", "echo", "d", b"{}", Judgement({"add": {"status": "new"}}, NOBODY), NOW)
    revision = await revision_of(catalog)
    found = {"add": {"status": "approved"}}
    act = Act("acme", ("acme", "-", "a"), "tool.approve", "backends/echo", NOW)
    other = Judgement(found, NOBODY, revision + 1)
    for judgement in (Judgement(found, NOBODY), other, Judgement(found, NOBODY.after([ADD]), revision)):
        with pytest.raises(Overtaken):
            await approvals.put("acme", "echo", [ADD], judgement, act=act)
        assert await approvals.get("acme", "echo") == NOBODY
        assert (await catalog.get("acme", ["echo"]))["echo"].pins == {"add": {"status": "new"}}
        assert await database.rows(select(audit)) == []
    await approvals.put("acme", "echo", [ADD], Judgement(found, NOBODY, revision), act=act)
    assert await approvals.get("acme", "echo") == NOBODY.after([ADD])
    assert (await catalog.get("acme", ["echo"]))["echo"].pins == found
    with pytest.raises(Overtaken):
        await catalog.put("acme", "echo", "d", b"[]", Judgement({}, NOBODY), NOW)
    spec = await backends.get("acme", "echo")
    blocked = replace(NOBODY.after([ADD]), policy="block")
    with pytest.raises(Overtaken):
        await backends.replace("acme", replace(spec, pin="block"), judgement=Judgement({}, blocked))
    assert await backends.get("acme", "echo") == spec
    await backends.replace("acme", replace(spec, pin="block"), judgement=Judgement({}, blocked, revision))
    row = (await catalog.get("acme", ["echo"]))["echo"]
    assert (row.policy, row.minor, row.pins) == ("block", "ask", {})


async def test_of_those_who_judge_at_the_same_time_one_is_not_overtaken(approvals, database):
    catalog = CatalogRepository(database)
    await catalog.put("acme", "echo", "d", b"{}", Judgement({}, NOBODY), NOW)
    revision = await revision_of(catalog)
    outcomes: list[bool] = []

    async def decide(tool: str) -> None:
        try:
            await approvals.put("acme", "echo", [replace(ADD, tool=tool)], Judgement({tool: {}}, NOBODY, revision))
            outcomes.append(True)
        except Overtaken:
            outcomes.append(False)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(decide, f"tool-{number}")
    assert sorted(outcomes) == [False, False, False, True]
    row = (await catalog.get("acme", ["echo"]))["echo"]
    assert list(row.pins) == list((await approvals.get("acme", "echo")).tools)


async def test_rejections_are_read_with_what_was_found_where_there_is_a_policy(approvals, database, backends):
    catalog = CatalogRepository(database)
    await catalog.put("acme", "echo", "d", b"{}", Judgement({}, NOBODY), NOW)
    said = NOBODY.after([replace(ADD, rejected="f" * 64)])
    await approvals.put("acme", "echo", list(said.tools.values()), Judgement({}, NOBODY, await revision_of(catalog)))
    assert (await catalog.get("acme", ["echo"]))["echo"].rejected == {"add": "f" * 64}
    await backends.replace("acme", replace(await backends.get("acme", "echo"), pin="off"))
    assert (await catalog.get("acme", ["echo"]))["echo"].rejected == {}
