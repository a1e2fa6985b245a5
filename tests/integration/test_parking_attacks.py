"""What may happen at the worst moment to a parked session: while it is woken. Nothing runs twice, and nothing is lost
that was not refused."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest

from tests.integration.asked import AskedSseClient, Places
from tests.integration.gateway import ROOT, Gateway, until
from tests.integration.parked import (
    WITHIN_S,
    is_awake,
    is_parked,
    opened,
    parking,
    processes,
    sessions,
    states,
    use,
    whoami,
)
from tests.integration.wire import Wire, error_of, events, last_message, listening, rpc

pytestmark = pytest.mark.timeout(300)


class Gate:
    """A backend whose processes answer the handshake only while it is open."""

    def __init__(self, gateway: Gateway, directory: Path, **fields: Any) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        directory.chmod(0o777)
        self.file = directory / "open"
        self.file.touch()
        argv = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/gate.py"), str(directory)]
        self.endpoint = parking(gateway, argv, **fields)
        self.path = f"/tenants/{self.endpoint.tenant}/backends/{self.endpoint.name}"

    def close(self) -> None:
        self.file.unlink()

    def open(self) -> None:
        self.file.touch()

    @property
    def calls(self) -> list[str]:
        """The tokens of those that were executed."""
        return [words[0] for words in self._executed()]

    @property
    def processes(self) -> set[str]:
        """Those that have executed any."""
        return {words[1] for words in self._executed()}

    def _executed(self) -> list[list[str]]:
        file = self.directory / "calls"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    async def is_waking(self, count: int = 1) -> list[dict[str, Any]]:
        """Until so many processes wait at the gate."""
        await until(lambda: len(self.living()) >= count, WITHIN_S)
        return self.living()

    def living(self) -> list[dict[str, Any]]:
        """Without those that have been given back."""
        return [each for each in processes(self.endpoint) if each["state"] != "stopping"]


def call(token: str, number: int = 7) -> dict[str, Any]:
    return rpc("tools/call", number, {"name": "through", "arguments": {"token": token}})


@pytest.fixture
def gate(gateway: Gateway, tmp_path: Path) -> Gate:
    return Gate(gateway, tmp_path / "gate")


class Calls:
    """Calls of a session that are not over yet."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self.answers: dict[str, httpx2.Response] = {}

    def start(self, session: Wire, token: str, number: int = 7) -> None:
        async def make() -> None:
            self.answers[token] = await session.post(call(token, number))

        self._tasks.start_soon(make)

    async def all(self, count: int) -> dict[str, httpx2.Response]:
        await until(lambda: len(self.answers) == count, WITHIN_S)
        return self.answers


async def test_requests_that_come_at_once_wake_one_process_and_each_gets_its_own_answer(
    gate: Gate, http: httpx2.AsyncClient
) -> None:
    async with opened(http, gate.endpoint) as session, anyio.create_task_group() as tasks:
        await is_parked(gate.endpoint)
        gate.close()
        calls = Calls(tasks)
        for number in range(20):
            calls.start(session, f"t{number}", number + 10)
        await gate.is_waking()
        await until(lambda: use(gate.endpoint)["in_flight"] == 20, WITHIN_S)
        gate.open()
        for token, response in (await calls.all(20)).items():
            message = last_message(response)
            assert (message["id"], message["result"]["content"][0]["text"]) == (int(token[1:]) + 10, token)
        assert sorted(gate.calls) == sorted(calls.answers)
        assert len(gate.processes) == 1


async def test_a_call_that_is_cancelled_while_its_session_wakes_is_not_executed(
    gate: Gate, http: httpx2.AsyncClient
) -> None:
    async with opened(http, gate.endpoint) as session, anyio.create_task_group() as tasks:
        await is_parked(gate.endpoint)
        gate.close()
        calls = Calls(tasks)
        calls.start(session, "withdrawn", 7)
        calls.start(session, "wanted", 8)
        await gate.is_waking()
        await until(lambda: use(gate.endpoint)["in_flight"] == 2, WITHIN_S)
        await session.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        gate.open()
        assert last_message((await calls.all(2))["wanted"])["id"] == 8
        assert gate.calls == ["wanted"]


async def test_a_session_that_is_deleted_while_it_wakes_leaves_nothing(gate: Gate, http: httpx2.AsyncClient) -> None:
    session = Wire(http, gate.endpoint)
    await session.open()
    await is_parked(gate.endpoint)
    gate.close()
    async with anyio.create_task_group() as tasks:
        calls = Calls(tasks)
        calls.start(session, "late")
        await gate.is_waking()
        assert (await session.close()).is_success
        assert "error" in last_message((await calls.all(1))["late"])
    gate.open()
    await until(lambda: not processes(gate.endpoint), WITHIN_S)
    assert gate.calls == []
    found = use(gate.endpoint)
    assert (found["sessions"], found["parked_sessions"], found["in_flight"], found["processes"]) == (0, 0, 0, 0)


async def test_a_client_that_hangs_up_while_its_session_wakes_finds_the_call_executed_once(
    gate: Gate, http: httpx2.AsyncClient
) -> None:
    """Up to 2025-11-25 a lost connection cancels nothing."""
    async with opened(http, gate.endpoint) as session:
        await is_parked(gate.endpoint)
        gate.close()
        async with anyio.create_task_group() as tasks:
            Calls(tasks).start(session, "left")
            await gate.is_waking()
            tasks.cancel_scope.cancel()
        gate.open()
        await until(lambda: gate.calls, WITHIN_S)
        assert last_message(await session.post(call("again", 8)))["id"] == 8
        assert gate.calls == ["left", "again"]


@pytest.mark.parametrize("deaths", [1, 2])
async def test_a_process_that_is_killed_while_it_wakes_a_session_is_replaced_once(
    gate: Gate, http: httpx2.AsyncClient, deaths: int
) -> None:
    async with opened(http, gate.endpoint) as session, anyio.create_task_group() as tasks:
        await is_parked(gate.endpoint)
        gate.close()
        calls = Calls(tasks)
        calls.start(session, "once")
        killed: set[int] = set()
        for _ in range(deaths):
            await until(lambda: {each["pid"] for each in gate.living()} - killed, WITHIN_S)
            for pid in {each["pid"] for each in gate.living()} - killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not {each["pid"] for each in gate.living()} & killed, WITHIN_S)  # with what is inside
        if deaths == 2:
            error = error_of((await calls.all(1))["once"])
            assert (error.reason, error.data.get("outcome")) == ("backend_unavailable", None)
            assert states(gate.endpoint) == ["parked"]
            gate.open()
            await session.post(call("once", 8))
        gate.open()
        answer = last_message((await calls.all(1))["once"])
        assert (answer.get("error") is None, gate.calls) == (deaths == 1, ["once"]), answer


@pytest.mark.parametrize("how", ["disabled", "removed", "the key is revoked", "the tenant is off"])
async def test_what_ends_a_session_ends_it_while_it_wakes(gate: Gate, http: httpx2.AsyncClient, how: str) -> None:
    gateway, endpoint = gate.endpoint.gateway, gate.endpoint
    session = Wire(http, endpoint)
    await session.open()
    await is_parked(endpoint)
    gate.close()
    async with anyio.create_task_group() as tasks:
        calls = Calls(tasks)
        calls.start(session, "late")
        await gate.is_waking()
        if how == "disabled":
            gateway.api("PATCH", gate.path, {"enabled": False, "reason": "broken"})
        elif how == "removed":
            gateway.api("DELETE", gate.path)
        elif how == "the key is revoked":
            keys = gateway.api("GET", f"/tenants/{endpoint.tenant}/keys")["items"]
            gateway.api("DELETE", f"/tenants/{endpoint.tenant}/keys/{keys[0]['id']}")
        else:
            gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"enabled": False, "reason": "unpaid"})
        answer = last_message((await calls.all(1))["late"])
    gate.open()
    assert "error" in answer, answer
    assert answer["error"]["data"].get("outcome") != "unknown"
    if how != "removed":
        await until(lambda: not processes(endpoint), WITHIN_S)
        assert (use(endpoint)["sessions"], use(endpoint)["parked_sessions"], use(endpoint)["in_flight"]) == (0, 0, 0)
    assert gate.calls == []


async def test_a_restart_while_a_session_wakes_gives_it_a_process_from_after_it(
    gate: Gate, http: httpx2.AsyncClient
) -> None:
    gateway, endpoint = gate.endpoint.gateway, gate.endpoint
    session = Wire(http, endpoint)
    await session.open()
    await is_parked(endpoint)
    gate.close()
    async with anyio.create_task_group() as tasks:
        calls = Calls(tasks)
        calls.start(session, "once")
        before = (await gate.is_waking())[0]["id"]
        gateway.api("POST", f"{gate.path}:restart")
        gate.open()
        answer = last_message((await calls.all(1))["once"])
    if "error" in answer:  # its process was there before
        assert answer["error"]["data"].get("outcome") != "unknown", answer
        assert (gate.calls, use(endpoint)["sessions"]) == ([], 0)
        return
    assert gate.calls == ["once"]
    assert before not in [each["id"] for each in processes(endpoint)]
    await session.close()


async def test_a_revoked_key_wakes_nothing(gate: Gate, http: httpx2.AsyncClient) -> None:
    gateway, endpoint = gate.endpoint.gateway, gate.endpoint
    session = Wire(http, endpoint)
    await session.open()
    await is_parked(endpoint)
    await until(lambda: not processes(endpoint), WITHIN_S)
    keys = gateway.api("GET", f"/tenants/{endpoint.tenant}/keys")["items"]
    gateway.api("DELETE", f"/tenants/{endpoint.tenant}/keys/{keys[0]['id']}")
    assert (await session.post(call("late"))).status_code == 401
    assert (processes(endpoint), use(endpoint)["sessions"], gate.calls) == ([], 0, [])


@pytest.mark.parametrize("which", ["of the node", "of the backend", "of the tenant"])
async def test_a_session_for_which_there_is_no_place_stays_parked_and_is_woken_later(
    start_gateway: Callable[..., Gateway], http: httpx2.AsyncClient, tmp_path: Path, which: str
) -> None:
    settings = {"MAX_PROCESSES": "1"} if which == "of the node" else {}
    gateway = start_gateway(POOL_WAIT_S="4", **settings)
    tenant = gateway.add_tenant(None, processes=1) if which == "of the tenant" else gateway.add_tenant()
    most = 1 if which == "of the backend" else 50
    gate = Gate(gateway, tmp_path / "gate", tenant=tenant, max_processes=most)
    async with opened(http, gate.endpoint) as session:
        await is_parked(gate.endpoint)
        await until(lambda: not processes(gate.endpoint), WITHIN_S)  # there is room
        async with opened(http, gate.endpoint) as other, anyio.create_task_group() as tasks:
            await is_parked(gate.endpoint, 2)
            gate.close()
            calls = Calls(tasks)
            calls.start(other, "first")
            await gate.is_waking()
            refused = await session.post(call("second"))
            error = error_of(refused)
            assert refused.status_code in (429, 503), refused.text
            assert error.reason in ("backend_busy", "quota_exceeded"), error
            assert error.data.get("outcome") is None
            gate.open()
            await calls.all(1)
        await until(lambda: not processes(gate.endpoint), WITHIN_S)
        assert last_message(await session.post(call("third", 9)))["id"] == 9
        assert gate.calls == ["first", "third"]


async def test_a_stream_outlives_many_naps_and_hears_everything(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session, listening(session) as heard:
        for nap in range(3):
            await is_parked(endpoint)
            await session.call("change")
            await until(lambda nap=nap: len(heard) == 2 * (nap + 1), WITHIN_S, lambda: str(heard))  # type: ignore[misc]
        assert {each["method"] for each in heard} == {"notifications/tools/list_changed"}


async def test_a_stream_is_resumed_while_its_session_is_parked_and_wakes_nothing(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session:
        async with session.stream("GET") as response:
            await session.call("change")
            last = await anext(each.id or "" async for each in events(response) if each.data)
        await is_parked(endpoint)
        await until(lambda: not processes(endpoint), WITHIN_S)
        async with session.stream("GET", last_event_id=last) as response:
            assert response.status_code == 200
            assert (states(endpoint), processes(endpoint)) == (["parked"], [])
            await session.call("change")
            heard = await anext(each async for each in events(response) if each.data)
            assert heard.message["method"] == "notifications/tools/list_changed"
            assert heard.id != last


@pytest.mark.parametrize("how", ["backend", "key", "session"])
async def test_the_stream_of_a_parked_session_ends_with_it(
    gateway: Gateway, http: httpx2.AsyncClient, how: str
) -> None:
    endpoint = parking(gateway)
    tenant = f"/tenants/{endpoint.tenant}"
    session = Wire(http, endpoint)
    await session.open()
    async with session.stream("GET") as response:
        await is_parked(endpoint)
        (key,) = gateway.api("GET", f"{tenant}/keys")["items"]
        path = {"backend": f"backends/{endpoint.name}", "key": f"keys/{key['id']}"}
        gateway.api("DELETE", f"{tenant}/{path.get(how) or 'sessions/' + sessions(endpoint)[0]['id']}")
        with anyio.fail_after(WITHIN_S):
            async for _ in events(response):
                pass
    assert (states(endpoint), use(endpoint)["parked_sessions"]) == ([], 0)


async def test_a_notification_wakes_a_session_and_is_heard(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    # It is not parked again before it is looked at, though the machine stands still for a while.
    endpoint = parking(gateway, timeouts={"park_s": 4.0})
    async with opened(http, endpoint) as session:
        await is_parked(endpoint)
        said = await session.post({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        assert said.status_code == 202
        await until(lambda: states(endpoint) == ["open"], WITHIN_S)
        heard = (await whoami(session))["heard"]
        assert heard == ["initialize", "notifications/initialized", "notifications/roots/list_changed"]


async def test_a_late_answer_and_a_late_cancellation_wake_nothing(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session:
        await is_parked(endpoint)
        await until(lambda: not processes(endpoint), WITHIN_S)
        await session.post({"jsonrpc": "2.0", "id": "q", "result": {}})
        await session.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await session.post({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1}})
        await anyio.lowlevel.checkpoint()
        assert processes(endpoint) == [] or states(endpoint) == ["open"]
        assert await session.call("echo", text="well") == "well"


async def test_a_session_whose_server_has_asked_is_not_parked(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    """Longer than a sweep after `park_s`, and then the answer arrives."""
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session, listening(session) as heard, anyio.create_task_group() as tasks:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await session.call("ask_and_wait", text="who?", method="elicitation/create"))

        await session.post(rpc("ping", 99))
        tasks.start_soon(ask)
        await until(lambda: use(endpoint)["in_flight"] == 1, WITHIN_S)
        await anyio.sleep(2.5)  # calm: it is not to be parked
        assert states(endpoint) == ["open"]
        assert {each["method"] for each in heard} <= {"elicitation/create", "notifications/tools/list_changed"}
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("isolation", ["session", "shared"])
async def test_a_session_of_2024_11_05_is_parked_and_woken_on_its_stream(
    gateway: Gateway, http: httpx2.AsyncClient, isolation: str
) -> None:
    endpoint = parking(gateway, isolation=isolation)
    async with AskedSseClient(http, endpoint, Places(*[endpoint.mcp] * len(Places._fields))) as client:
        await client.open()
        before = await client.process()
        await is_parked(endpoint)
        after = await client.process()
        assert isolation == "shared" or after != before
        await is_awake(endpoint, client.process)
        assert {each.get("method") for each in client.strays} <= {"notifications/tools/list_changed"}
