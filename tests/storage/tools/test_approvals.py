"""What persons have approved of tools, in the database."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.errors import BackendNotFound, NotFound
from app.storage.tools.approvals import Approval, ApprovalRepository

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADD = Approval("add", b"{}", None, "key a", NOW)


@pytest.fixture
async def approvals(database, backends, spec):
    await backends.create("acme", replace(spec, pin="warn", pin_minor="ask"))
    return ApprovalRepository(database)


async def test_what_is_said_of_a_tool_replaces_what_was_said_before(approvals):
    reject = Approval("rm", None, "f" * 64, "key b", NOW)
    await approvals.put("acme", "echo", [ADD, reject])
    found = await approvals.get("acme", "echo")
    assert (found.policy, found.minor, found.tools) == ("warn", "ask", {"add": ADD, "rm": reject})
    later = replace(ADD, rejected="e" * 64)
    await approvals.put("acme", "echo", [later, Approval("rm", None, None, "key b", NOW)])
    assert (await approvals.get("acme", "echo")).tools == {"add": later}


async def test_it_goes_with_its_backend_and_needs_one(approvals, backends):
    await approvals.put("acme", "echo", [ADD])
    await backends.delete("acme", "echo")
    with pytest.raises(BackendNotFound):
        await approvals.get("acme", "echo")
    with pytest.raises(NotFound):
        await approvals.put("acme", "echo", [ADD])
    with pytest.raises(BackendNotFound):
        await approvals.get("zenith", "echo")
