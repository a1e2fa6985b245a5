"""Each alert fires where its condition was really brought about, and none does on a healthy gateway. One node."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import httpx2
import psutil
import pytest

from tests.alerting import QUIET_S, Judge, Scrape, judge, lasting, look, names, once, together
from tests.certificates import self_signed
from tests.integration.gateway import ECHO, MISBEHAVE, ROOT, Endpoint, Gateway, running_gateway, until
from tests.integration.wire import RpcError, Wire, initialize, rpc, wire

HOUR_S = 3600.0 + 600.0
EXPIRES = "trunkline_tls_certificate_expires_timestamp_seconds"

__all__ = ["judge"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway at which nobody waits longer than ten seconds."""
    with running_gateway(tmp_path_factory.mktemp("watched") / "data", POOL_WAIT_S="10") as gateway:
        yield gateway


async def refused(endpoint: Endpoint, count: int = 1) -> list[str]:
    """So many clients, one after the other; why each got no session."""
    reasons = []
    async with httpx2.AsyncClient(timeout=60) as http:
        for _ in range(count):
            with pytest.raises(RpcError) as failed:
                await Wire(http, endpoint).open()
            reasons.append(str(failed.value.reason))
    return reasons


async def test_nothing_fires_on_a_healthy_gateway(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(ECHO, warm=1)
    await until(lambda: watched.metrics().get('trunkline_processes{state="warm"}', 0) == 1, 20)
    before = look(watched)
    async with wire(endpoint) as session:
        for number in range(30):
            assert await session.call("echo", text=str(number)) == str(number)
    after = look(watched)
    assert judge(lasting(before, after, HOUR_S)) == set()
    assert judge(once(before, after, 900)) == set()


async def test_a_node_that_does_not_answer_is_down(start_gateway: Callable[..., Gateway], judge: Judge) -> None:
    gateway = start_gateway()
    before, other = look(gateway), "node-2"
    alone = lasting(before, before, 900)
    gateway.kill()
    gone = once(before, look(gateway), 900)
    assert names(judge(gone)) == {"TrunklineDown"}
    pair = together(gone, {labels - {("instance", "node-1")} | {("instance", other)}: s for labels, s in alone.items()})
    alerts = judge(pair)
    assert names(alerts) == {"TrunklineDown", "TrunklineAlone"}
    assert {alert.label("instance") for alert in alerts if alert.name == "TrunklineDown"} == {"node-1"}


async def test_calls_that_fail_through_their_backend_are_errors(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint([*MISBEHAVE, "in-call"])
    before = look(watched)
    for _ in range(3):
        async with wire(endpoint) as session:
            assert (await session.ask("any")).reason == "backend_exited"
    assert "TrunklineErrors" in names(judge(lasting(before, look(watched), 900)))


async def test_a_crowd_of_wrong_keys_hides_no_error(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint([*MISBEHAVE, "in-call"])
    before = look(watched)
    async with wire(endpoint) as session:
        assert (await session.ask("any")).reason == "backend_exited"
        stranger = Wire(session.http, endpoint, key="tlk_00000000_" + "b" * 43)
        for _ in range(60):
            assert (await stranger.post(initialize())).status_code == 401
    assert "TrunklineErrors" in names(judge(lasting(before, look(watched), 900)))


async def test_calls_that_take_too_long_are_errors(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint([*MISBEHAVE, "never"], timeouts={"call_s": 0.5})
    async with wire(endpoint) as session:
        before = look(watched)
        assert (await session.ask("any")).reason == "timeout"
        assert "TrunklineErrors" in names(judge(lasting(before, look(watched), 900)))


async def test_errors_of_callers_are_no_errors_of_ours(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(ECHO)
    async with wire(endpoint) as session:
        before = look(watched)
        for number in range(20):
            assert (await session.post(rpc("no/such/method", 1000 + number))).status_code == 200
            assert (await session.post(b"{")).status_code == 400
        assert names(judge(lasting(before, look(watched), 900))) == set()


async def test_a_backend_that_dies_at_once_opens_the_breaker(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint([*MISBEHAVE, "at-once"])
    before = look(watched)
    with anyio.fail_after(60):
        while "backend_unavailable" not in await refused(endpoint):
            pass
    after = look(watched)
    await refused(endpoint, 10)
    alerts = names(judge(lasting(before, look(watched), 900)))
    assert {"TrunklineBreakerOpen", "TrunklineErrors", "TrunklineRefuses"} <= alerts
    assert "TrunklineBreakerOpen" in names(judge(once(before, after, 900)))
    watched.api("DELETE", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")
    await until(lambda: watched.metrics()["trunkline_breaker_open"] == 0, 10)


async def test_a_command_that_is_not_there_cannot_be_spawned(watched: Gateway, judge: Judge) -> None:
    before = look(watched)
    for _ in range(5):  # of as many tenants: a single one's is not tried so often
        assert await refused(watched.endpoint(["/nowhere/at/all"])) == ["backend_exited"]
    alerts = judge(once(before, look(watched), 300))
    assert {"TrunklineSpawnsFail"} <= names(alerts)


async def test_sessions_that_wait_for_a_process(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(ECHO, max_processes=1)
    before = look(watched)
    async with wire(endpoint):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(refused, endpoint)
        alerts = judge(lasting(before, look(watched), 900))
    assert {"TrunklinePoolWait", "TrunklineFull"} <= names(alerts)
    assert [each.label("limit") for each in alerts if each.name == "TrunklineFull"] == ["max_processes"]


async def test_most_sessions_start_cold(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(ECHO)
    before = look(watched)
    for _ in range(5):
        async with wire(endpoint):
            pass
    assert "TrunklineColdStarts" in names(judge(lasting(before, look(watched), 2400)))


async def test_a_tenant_sends_faster_than_it_may(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(ECHO, tenant=watched.add_tenant(requests_per_second=1, burst=5))
    async with wire(endpoint) as session:
        before = look(watched)
        for number in range(50):
            await session.post(rpc("ping", 1000 + number))
        alerts = judge(lasting(before, look(watched), 900))
    assert {(each.name, each.label("limit")) for each in alerts} == {
        ("TrunklineRefusesForLimits", "requests_per_second")
    }


async def test_messages_reach_nobody(watched: Gateway, judge: Judge) -> None:
    async with wire(watched.endpoint(ECHO)) as session:
        before = look(watched)
        for number in range(30):  # answers to questions that nobody has asked
            assert (await session.post({"jsonrpc": "2.0", "id": number, "result": {}})).status_code == 202
        alerts = judge(lasting(before, look(watched), 1800))
    assert {(each.name, each.label("reason")) for each in alerts} == {("TrunklineMessagesDropped", "unknown_response")}


@pytest.mark.parametrize("limit", ["sessions", "sessions_per_principal"])
async def test_a_tenant_has_all_the_sessions_it_may_have(watched: Gateway, judge: Judge, limit: str) -> None:
    endpoint = watched.endpoint(ECHO, tenant=watched.add_tenant(None, **{limit: 1}))
    before = look(watched)
    async with wire(endpoint):
        assert set(await refused(endpoint, 6)) == {"quota_exceeded"}
        alerts = judge(once(before, look(watched), 300))
    assert ("TrunklineFull", limit) in {(each.name, dict(each.labels).get("limit")) for each in alerts}


async def test_somebody_tries_keys(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(ECHO)
    before = look(watched)
    async with httpx2.AsyncClient(timeout=30) as http:
        client = Wire(http, endpoint, key="tlk_00000000_" + "a" * 43)
        for _ in range(100):
            assert (await client.post(initialize())).status_code == 401
    assert names(judge(lasting(before, look(watched), 900))) == {"TrunklineCredentialsRefused"}


async def test_a_key_goes_from_hand_to_hand(start_gateway: Callable[..., Gateway], judge: Judge) -> None:
    gateway = start_gateway(TRUSTED_PROXIES="127.0.0.1/32")  # the test is the proxy
    tenant = gateway.add_tenant()
    path = f"{gateway.url}/api/v1/tenants/{tenant}/backends"
    named = {"Authorization": f"Bearer {gateway.key(tenant, ['tenant:read'])}"}
    before = look(gateway)
    async with httpx2.AsyncClient(timeout=30) as http:

        async def come(network: str, count: int) -> None:
            for number in range(count):
                answer = await http.get(path, headers={**named, "X-Forwarded-For": f"{network}.{number}"})
                assert answer.status_code == 200, answer.text

        await come("192.0.2", 10)  # people travel
        assert judge(once(before, look(gateway), 300)) == set()
        await come("198.51.100", 20)
    assert names(judge(once(before, look(gateway), 300))) == {"TrunklineNewAddresses"}


class Attentive(Gateway):
    """A gateway that looks at its descriptors ten times a second."""

    FIRST = "import app.limits.overload as overload; overload.LOOK_EVERY = 1"


@pytest.mark.parametrize("what", ["session", "call"])
async def test_an_overloaded_node_sheds(tmp_path: Path, judge: Judge, what: str) -> None:
    with running_gateway(tmp_path / "data", Attentive, SHED_SESSIONS_PERCENT="60", SHED_CALLS_PERCENT="60") as gateway:
        endpoint = gateway.endpoint(ECHO)
        async with wire(endpoint) as session:
            node = psutil.Process(gateway.pid)
            before, limits = look(gateway), node.rlimit(resource.RLIMIT_NOFILE)
            node.rlimit(resource.RLIMIT_NOFILE, (int(node.num_fds() / 0.8), limits[1]))
            message = initialize() if what == "session" else rpc("ping", 1000)
            client = session if what == "call" else Wire(session.http, endpoint)
            with anyio.fail_after(30):
                while (await client.post(message)).status_code != 503:
                    await anyio.sleep(0.05)
            for _ in range(10):
                assert (await client.post(message)).status_code == 503
            alerts = judge(lasting(before, look(gateway), 900))
            node.rlimit(resource.RLIMIT_NOFILE, limits)
    shed = {(each.label("what"), each.label("mark")) for each in alerts if each.name == "TrunklineSheds"}
    assert (what, "descriptors") in shed
    assert "TrunklineErrors" in names(alerts)


GLUTTON = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/trouble.py")]


async def test_backends_are_killed_at_their_memory_limit(watched: Gateway, judge: Judge) -> None:
    endpoint = watched.endpoint(GLUTTON, limits={"memory_mb": 100})
    count = 'trunkline_limits_hit_total{limit="memory"}'
    before, hit = look(watched), watched.metrics()[count]
    for number in range(3):
        async with wire(endpoint) as session:
            await session.post(rpc("tools/call", 1000, {"name": "eat", "arguments": {"mib": 300}}))
            await until(lambda number=number: watched.metrics()[count] > hit + number, 30)  # type: ignore[misc]
    alerts = judge(once(before, look(watched), 300))
    assert [each.label("limit") for each in alerts if each.name == "TrunklineOutOfMemory"] == ["memory"]


class WithoutLandlock(Gateway):
    """A gateway whose kernel has no Landlock: a filter answers the first of its calls as a kernel without it would."""

    FIRST = (
        "import struct; from app.jail.spawner import syscalls; syscalls.renounce_privileges(); "
        "steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)]; "
        "syscalls.filter_system_calls(b''.join(struct.pack('=HBBI', *each) for each in steps))"
    )


async def test_a_node_without_a_sandbox_is_named(tmp_path: Path, judge: Judge) -> None:
    with running_gateway(tmp_path / "data", WithoutLandlock) as gateway:
        before = look(gateway)
        alerts = judge(lasting(before, look(gateway), 900))
    weak = {each.label("guarantee") for each in alerts if each.name == "TrunklineSandboxWeak"}
    assert weak == {"files", "network", "processes"}


def test_a_certificate_is_not_renewed(
    tmp_path: Path, start_gateway: Callable[..., Gateway], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = self_signed(tmp_path, days=30)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    gateway = start_gateway(TLS_CERT=str(cert), TLS_KEY=str(key))

    def days_later(days: int) -> Scrape:
        """The time of the series begins at 0, that of certificates does not."""
        seen, from_then_on = look(gateway), days * 86_400 + time.time() - 2 * QUIET_S
        ends = {
            labels: value - from_then_on for labels, value in seen.samples.items() if EXPIRES in dict(labels).values()
        }
        assert len(ends) == 1
        return replace(seen, samples={**seen.samples, **ends})

    assert judge(once(days_later(0), days_later(15), 900)) == set()
    assert names(judge(once(days_later(0), days_later(17), 900))) == {"TrunklineCertificateExpires"}
