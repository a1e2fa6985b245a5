"""NodeOverview: the live objects as values, of one tenant at a time."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.domain import Principal
from app.sessions.overview import NodeOverview, public_id
from tests.sessions.fakes import FakePool


@pytest.fixture
def overview(registry: Any, pool: FakePool) -> NodeOverview:
    nothing: Any = SimpleNamespace(processes=[])
    typed_pool: Any = pool
    return NodeOverview("n1", "test", registry, typed_pool, nothing)


async def test_a_session_is_shown_to_its_tenant_under_a_public_id_and_ended_by_it(overview, registry, principal):
    session = await registry.open(principal, "acme", "echo", "streamable")
    (shown,) = overview.sessions("acme")
    assert shown.id == public_id(session.id)
    assert len(shown.id) == 12
    assert shown.id not in session.id
    assert (shown.backend, shown.subject, shown.process, shown.calls) == ("echo", "k1", None, 0)
    assert overview.sessions("zenith") == []
    for tenant, name in (("zenith", shown.id), ("acme", session.id), ("acme", "")):
        assert not overview.end_session(tenant, name)
    assert overview.status().sessions == 1
    assert overview.end_session("acme", shown.id)
    assert not overview.end_session("acme", shown.id)
    assert overview.status().sessions == 0
    assert overview.processes("acme") == []
    assert overview.stderr("acme", "p", 1) is None


async def test_a_node_that_drains_says_so(overview, registry):
    assert not overview.status().draining
    await registry.drain(0)
    assert overview.status().draining


async def test_sessions_of_several_principals_are_in_order_of_their_ids(overview, registry):
    for number in range(4):
        await registry.open(Principal("acme", "key", f"k{number}", frozenset()), "acme", "echo", "sse")
    ids = [each.id for each in overview.sessions("acme")]
    assert ids == sorted(ids)
    assert len(set(ids)) == 4
