"""One process is the home of a client of 2026-07-28: whatever it does, a server that remembers remembers all of it."""

import json
from typing import Any

import anyio
import httpx2

from tests.integration.gateway import Endpoint, Gateway
from tests.integration.notebook import KINDS, NOTEBOOK, Person
from tests.integration.sessionless_wire import another_key
from tests.integration.wire import error_of

CALLS, AT_ONCE = 200, 12


async def test_every_one_of_200_mixed_calls_gets_the_same_process(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = gateway.endpoint(NOTEBOOK)
    people = [Person(http, each) for each in (endpoint, another_key(endpoint))]
    for kinds in KINDS:
        async with anyio.create_task_group() as tasks:
            for person in people:
                tasks.start_soon(person.run, kinds, CALLS // 4, AT_ONCE // 2)
    for person in people:
        said = await person.said("keys")
        assert said["stored"] == person.put
        assert len(person.processes) == 1
    assert people[0].processes != people[1].processes, "no two principals share a process"


async def test_a_caller_keeps_its_process_where_sessions_share_several(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = gateway.endpoint(NOTEBOOK, isolation="shared", max_processes=4, calls_per_session=16)
    person = Person(http, endpoint)
    await person.run(KINDS[1], CALLS // 4, AT_ONCE // 2)
    assert len(gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]) == 1
    assert len(person.processes) == 1


async def test_the_end_of_the_process_is_an_error_of_each_call_that_it_had(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    person = Person(http, gateway.endpoint(NOTEBOOK))
    before = (await person.said("put", key="a"))["process"]
    suspended = await person.client.begin("ask", key="suspended")
    responses: list[httpx2.Response] = []

    async def hold(key: str) -> None:
        responses.append(await person.client.post("tools/call", name="hold", arguments={"key": key}))

    async with anyio.create_task_group() as tasks:
        for key in "bcd":
            tasks.start_soon(hold, key)
        for key in "bcd":
            await person.said("held", key=key)
        assert error_of(await person.client.post("tools/call", name="exit", arguments={})).reason == "backend_exited"
    assert [error_of(each).reason for each in responses] == ["backend_exited"] * 3
    assert error_of(await person.client.retry("ask", suspended, 1, key="suspended")).reason == "state_lost"
    after = await person.said("put", key="e")
    assert (after["count"], after["process"] == before) == (1, False)


async def test_a_home_with_as_many_calls_as_it_may_have_lets_the_next_wait_and_still_answers_retries(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    person = Person(http, gateway.endpoint(NOTEBOOK, calls_per_session=4))
    await person.said("put", key="first")
    asked = {number: await person.client.begin("ask", key=f"s{number}") for number in range(3)}
    waiting: list[dict[str, Any]] = []

    async def wait(number: int) -> None:
        waiting.append(await person.said("put", key=f"w{number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(wait, number)
        discovered = await person.client.request("server/discover")
        assert discovered["capabilities"]["prompts"] == {}
        assert not waiting
        for number, each in asked.items():
            answers = {key: person.answer_to(question["params"]) for key, question in each["inputRequests"].items()}
            more = {"inputResponses": answers, "requestState": each["requestState"]}
            arguments = {"key": f"s{number}"}
            result = await person.client.request("tools/call", name="ask", arguments=arguments, **more)
            assert json.loads(result["content"][0]["text"])["value"] == f"value of s{number}"
    assert len(waiting) == 5
    said = await person.said("keys")
    assert len(person.processes) == 1
    assert said["count"] == 9


async def test_a_revoked_credential_ends_only_the_home_of_its_principal(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = gateway.endpoint(NOTEBOOK)
    key = gateway.api("POST", f"/tenants/{endpoint.tenant}/keys", {"name": "test", "scopes": ["mcp:connect"]})
    revoked = Endpoint(gateway, endpoint.tenant, endpoint.name, endpoint.base, key["key"])
    kept, lost = Person(http, endpoint), Person(http, revoked)
    for person in (kept, lost):
        await person.said("put", key="a")
    responses: list[httpx2.Response] = []

    async def hold(person: Person) -> None:
        responses.append(await person.client.post("tools/call", name="hold", arguments={"key": "h"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold, lost)
        await lost.said("held", key="h")
        gateway.api("DELETE", f"/tenants/{endpoint.tenant}/keys/{key['id']}")
    assert error_of(responses[0]).reason == "call_cut_off"
    assert (await kept.said("put", key="b"))["count"] == 2
    assert len(kept.processes) == 1
