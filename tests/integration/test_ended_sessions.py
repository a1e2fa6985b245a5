"""Whose session an administrator has ended is told so: with the calls under way, and with the next request."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx2

from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.nodes import Nodes
from tests.integration.notebook import NOTEBOOK, Person
from tests.integration.wire import Wire, error_of, last_message, rpc, wire

CAUSE = "ended_by_administrator"
TOLD = "An administrator has ended this session"


def sessions(gateway: Gateway, endpoint: Endpoint) -> list[str]:
    return [each["id"] for each in gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]]


def end(gateway: Gateway, endpoint: Endpoint, session: str) -> None:
    gateway.api("DELETE", f"/tenants/{endpoint.tenant}/sessions/{session}", expect=204)


def public(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()[:12]


async def ended_while(
    held: Callable[[], Awaitable[object]], call: Callable[[], Awaitable[httpx2.Response]], end: Callable[[], None]
) -> dict[str, Any]:
    """The error of a call that was under way when its session was ended."""
    responses: list[httpx2.Response] = []

    async def ask() -> None:
        responses.append(await call())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await held()
            await anyio.to_thread.run_sync(end)
    error: dict[str, Any] = last_message(responses[0])["error"]
    return error


def must_be_cut_off(error: dict[str, Any]) -> None:
    assert error["message"] == f"{TOLD}; whether the call was carried out is not known"
    said = error["data"]
    assert (said["reason"], said["cause"], said["outcome"]) == ("call_cut_off", CAUSE, "unknown")


def must_be_over(response: httpx2.Response) -> None:
    error = error_of(response)
    assert response.status_code == 404
    assert TOLD in str(error)
    assert error.data == {"reason": "session_ended", "cause": CAUSE, "hint": error.data["hint"]}
    assert "`initialize`" in error.data["hint"]


async def test_the_client_of_streamable_http_hears_that_an_administrator_ended_its_session(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(NOTEBOOK)
    before = gateway.metrics().get(f'trunkline_sessions_closed_total{{reason="{CAUSE}"}}', 0)
    async with httpx2.AsyncClient(timeout=30) as http:
        session, stranger = Wire(http, endpoint), Wire(http, endpoint, key=gateway.key(endpoint.tenant))
        await session.open()
        hold = rpc("tools/call", 7, {"name": "hold", "arguments": {"key": "a"}})
        must_be_cut_off(
            await ended_while(
                lambda: session.call("held", key="a"),
                lambda: session.post(hold),
                lambda: end(gateway, endpoint, public(session.session_id)),
            )
        )
        for again in (await session.post(rpc("tools/list", 8)), await session.close()):
            must_be_over(again)
        async with session.stream("GET") as stream:
            await stream.aread()
            must_be_over(stream)
        stranger.headers |= {"Mcp-Session-Id": session.session_id}
        assert error_of(await stranger.post(rpc("tools/list", 9))).data["reason"] == "session_not_found"
        await Wire(http, endpoint).open()  # it begins another
    assert gateway.metrics()[f'trunkline_sessions_closed_total{{reason="{CAUSE}"}}'] == before + 1


async def test_the_client_of_http_sse_hears_it_with_its_next_message(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        async with http.stream("GET", endpoint.sse, headers=endpoint.headers) as stream:
            lines = stream.aiter_lines()
            with anyio.fail_after(30):
                async for line in lines:
                    if line.startswith("data:"):
                        break
                path = line.removeprefix("data:").strip()
                (session,) = sessions(gateway, endpoint)
                await anyio.to_thread.run_sync(end, gateway, endpoint, session)
                async for _ in lines:  # to its end
                    pass
        must_be_over(await http.post(gateway.url + path, json=rpc("tools/list", 2), headers=endpoint.headers))


async def test_a_client_of_2026_07_28_hears_it_of_its_calls_and_is_served_again(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(NOTEBOOK)
    async with httpx2.AsyncClient(timeout=30) as http:
        person = Person(http, endpoint)
        first = (await person.said("put", key="k"))["process"]
        (session,) = sessions(gateway, endpoint)
        must_be_cut_off(
            await ended_while(
                lambda: person.said("held", key="a"),
                lambda: person.client.post("tools/call", name="hold", arguments={"key": "a"}),
                lambda: end(gateway, endpoint, session),
            )
        )
        assert (await person.said("put", key="k"))["process"] != first


async def test_any_node_knows_why_a_session_has_ended(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    async with wire(endpoint) as session:
        asked = public(session.session_id)
        await until(lambda: asked in sessions(nodes.all[1], endpoint), 20)
        await anyio.to_thread.run_sync(end, nodes.all[1], endpoint, asked)
        for url in nodes.urls(endpoint):
            session.url = url
            must_be_over(await session.post(rpc("tools/list", 8)))


async def test_a_restarted_backend_is_named_as_the_cause(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as session:
        gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:restart", expect=204)
        error = error_of(await session.post(rpc("tools/list", 8)))
    assert (error.reason, error.data["cause"]) == ("session_ended", "backend_restarted")
    assert "an administrator has restarted its backend" in json.dumps(str(error))
