"""Leases of upstream sessions: the breaker, and the end of the node."""

from dataclasses import replace

import pytest

from app.backends.upstreams import connecting
from app.errors import BackendBusy, BackendUnavailable, ShuttingDown
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import (
    Answer,
    Heard,
    good,
    line,
    make_upstreams,
    opened,
    polite,
    serving,
    spec_at,
    unused_port,
)


async def broken(asked):
    await asked.whole("no", 500, kind="text/plain")


async def fails(upstreams, spec) -> BackendUnavailable:
    with pytest.raises(BackendUnavailable) as caught:
        await upstreams.lease(spec)
    return caught.value


async def test_a_server_that_cannot_be_reached_is_not_asked_for_ever():
    metrics = Metrics("test")
    spec = spec_at(f"http://127.0.0.1:{unused_port()}/mcp")
    async with make_upstreams(metrics) as upstreams:
        upstreams._clock = lambda: 0.0  # the breaker opens for half a second only
        for _ in range(5):
            assert "refuses connections" in str(await fails(upstreams, spec))
        error = await fails(upstreams, spec)
        assert "several times in a row" in str(error)
        assert error.retry_after_s is not None
        assert metrics.registry.get_sample_value("trunkline_breaker_open") == 1
        ((_, numbers),) = upstreams.snapshot().items()
        assert numbers.breaker_open
        (failure,) = upstreams._parts.failures.of(spec.key)
        assert (failure.kind, failure.times) == ("not_started", 5)
        upstreams.restart(spec.key)
        assert "refuses connections" in str(await fails(upstreams, spec))
        assert metrics.registry.get_sample_value("trunkline_breaker_open") == 0


async def test_handshakes_that_fail_open_the_breaker_and_one_that_succeeds_closes_it():
    answer: Answer = broken
    metrics = Metrics("test")

    async def changing(asked):
        await answer(asked)

    clock = [0.0]
    async with serving(changing) as server, make_upstreams(metrics) as upstreams:
        upstreams._clock = lambda: clock[0]
        for _ in range(5):
            link, heard = await upstreams.lease(spec_at(server.url)), Heard()
            link.attach(heard)
            link.send(line(1, "initialize"))
            assert "HTTP 500" in str(await heard.failure(1))
            link.release("not_initialized")
        await fails(upstreams, spec_at(server.url))
        answer = polite(good)
        clock[0] = 50.0
        await opened(upstreams, spec_at(server.url))
        assert metrics.registry.get_sample_value("trunkline_breaker_open") == 0
        assert metrics.registry.get_sample_value("trunkline_upstream_sessions") == 1


async def test_a_new_version_begins_with_a_closed_breaker():
    spec = spec_at(f"http://127.0.0.1:{unused_port()}/mcp")
    async with make_upstreams() as upstreams:
        for _ in range(6):
            await fails(upstreams, spec)
        upstreams.configure(replace(spec, version=2))
        assert "refuses connections" in str(await fails(upstreams, replace(spec, version=2)))
        assert upstreams.spec_of(spec.key) == replace(spec, version=2)
        upstreams.forget(spec.key)
        assert upstreams.backends() == set()


async def test_a_namesake_of_one_that_was_removed_is_not_asked_where_that_was():
    """Before the node had heard of the removal, sessions of the new one went to the old address, with its headers."""
    spec = replace(spec_at(f"http://127.0.0.1:{unused_port()}/mcp"), made=1)
    namesake = replace(spec, url=f"http://127.0.0.1:{unused_port()}/mcp", made=2)
    async with make_upstreams() as upstreams:
        await fails(upstreams, spec)
        await fails(upstreams, namesake)
        assert upstreams.spec_of(spec.key).url == namesake.url


async def test_headers_that_cannot_be_opened_are_said_so():
    async with serving(polite(good)) as server, make_upstreams() as upstreams:
        spec = replace(spec_at(server.url), headers={"Authorization": "AAAA"})
        assert "secrets cannot be opened" in str(await fails(upstreams, spec))
    assert server.asked == []


async def test_too_many_connections_are_busy_and_no_fault_of_the_server(monkeypatch):
    monkeypatch.setattr(connecting, "MAX_OF_TENANT", 1)
    async with serving(polite(good)) as server, make_upstreams() as upstreams:
        await opened(upstreams, spec_at(server.url))
        with pytest.raises(BackendBusy, match="for this tenant"):
            await upstreams.lease(spec_at(server.url))
        assert upstreams._parts.failures.of(("acme", "far")) == ()


async def test_the_end_of_the_node_ends_its_sessions_at_the_servers():
    async with serving(polite(good)) as server:
        async with make_upstreams() as upstreams:
            for _ in range(3):
                await opened(upstreams, spec_at(server.url))
        await server.until_quiet()
        assert len(server.of("DELETE")) == 3
        with pytest.raises(ShuttingDown):
            await upstreams.lease(spec_at(server.url))
