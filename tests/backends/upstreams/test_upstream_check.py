""":check of a server that is reached by URL."""

from app.backends.checks.steps import Steps
from app.backends.upstreams.upstream_check import check_upstream
from tests.backends.upstreams.rig import HELLO, make_upstreams, polite, serving, spec_at, unused_port


async def answer(asked):
    await asked.result({"tools": [{"name": "add"}]})


async def test_a_server_that_works(monkeypatch):
    monkeypatch.setitem(HELLO, "capabilities", {"tools": {}})
    async with serving(polite(answer)) as server, make_upstreams() as upstreams:
        found = await check_upstream(upstreams, spec_at(server.url), Steps())
        assert (found.failure, found.counts["tools"], found.server["name"]) == (None, 1, "far")
        assert [step.name for step in found.steps] == ["resolve", "connect", "initialize", "tools/list"]
        assert upstreams.backends() == set()
    await server.until_quiet()
    assert len(server.of("DELETE")) == 1


async def test_a_server_that_is_not_there():
    async with make_upstreams() as upstreams:
        found = await check_upstream(upstreams, spec_at(f"http://127.0.0.1:{unused_port()}/mcp"), Steps())
    assert found.failure is not None
    assert (found.failure.step, found.failure.reason) == ("connect", "backend_unavailable")
    assert [step.name for step in found.steps] == ["resolve", "connect"]


async def test_a_server_that_refuses_the_headers():
    async def refuses(asked):
        await asked.whole("", 401)

    async with serving(refuses) as server, make_upstreams() as upstreams:
        found = await check_upstream(upstreams, spec_at(server.url), Steps())
    assert found.failure is not None
    assert (found.failure.step, found.failure.reason) == ("initialize", "upstream_refused")
    assert found.failure.hint is not None
