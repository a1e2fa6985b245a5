"""What a backend's failures leave behind when its processes are gone, as an administrator finds it."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import MISBEHAVE, ROOT, Endpoint, Gateway, until
from tests.integration.wire import RpcError, Wire, wire

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
TELLS_SECRETS = "import os, sys; sys.stderr.write('cannot log in with ' + os.environ['TOKEN'] + '\\n'); sys.exit(1)"


def shown(endpoint: Endpoint, *, key: str | None = None) -> dict[str, Any]:
    """The backend, as its node shows it."""
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    answer: dict[str, Any] = endpoint.gateway.api("GET", path, key=key)
    return answer


def listed(endpoint: Endpoint) -> dict[str, Any]:
    (answer,) = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/backends")["items"]
    found: dict[str, Any] = answer
    return found


def public(session: Wire) -> str:
    return hashlib.sha256(session.session_id.encode()).hexdigest()[:12]


async def has_failed(endpoint: Endpoint, is_meant: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
    """The newest failure that is meant."""

    def found() -> list[dict[str, Any]]:
        return [each for each in shown(endpoint)["failures"] if is_meant(each)]

    await until(found, 20)
    return found()[0]


async def refused(endpoint: Endpoint) -> None:
    async with httpx2.AsyncClient(timeout=60) as http:
        with pytest.raises(RpcError):
            await Wire(http, endpoint).open()


async def test_a_crash_loop_is_one_failure_with_a_count_and_the_last_words(gateway: Gateway) -> None:
    began_at = datetime.now(UTC)
    endpoint = gateway.endpoint([*MISBEHAVE, "at-once"])
    assert (shown(endpoint)["failures"], shown(endpoint)["last_failure"], shown(endpoint)["status"]) == (
        [],
        None,
        "idle",
    )
    await asyncio.gather(*(refused(endpoint) for _ in range(12)))
    await until(lambda: shown(endpoint)["status"] == "breaker_open", 20, lambda: shown(endpoint))
    await until(lambda: not any(shown(endpoint)["processes"].values()), 20, lambda: shown(endpoint))
    (failure,) = shown(endpoint)["failures"]
    assert (failure["kind"], failure["detail"], failure["before_handshake"]) == ("exited", "exit status 7", True)
    assert failure["times"] >= 5
    assert began_at < datetime.fromisoformat(failure["first_at"]) < datetime.fromisoformat(failure["at"])
    assert len(failure["stderr"]) == 2
    assert failure["process"]
    assert failure["lived_s"] < 30
    assert (failure["version"], failure["method"], failure["tool"]) == (1, None, None)
    item = listed(endpoint)
    assert item["status"] == "breaker_open"
    assert datetime.fromisoformat(item["breaker_open_until"]) > began_at
    assert item["last_error"] == f"exit status 7, at its start, {failure['times']} times"
    assert item["last_failure"] == {
        name: failure[name] for name in ("at", "kind", "detail", "before_handshake", "times", "node")
    }


async def test_who_was_affected_is_named_when_the_process_is_gone(gateway: Gateway) -> None:
    endpoint = gateway.endpoint([*MISBEHAVE, "in-call"])
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        await session.open()
        assert shown(endpoint)["status"] == "running"
        assert shown(endpoint)["processes"]["leased"] == 1
        with pytest.raises(RpcError):
            await session.call("x")
    failure = await has_failed(endpoint)
    assert (failure["kind"], failure["detail"], failure["before_handshake"]) == ("exited", "exit status 5", False)
    assert failure["stderr"] == ["Traceback: it broke"]
    (affected,) = failure["affected"]
    (key,) = gateway.api("GET", f"/tenants/{endpoint.tenant}/keys")["items"]
    assert affected == {
        "session": public(session), "tenant": endpoint.tenant, "issuer": "key", "subject": key["id"],
    }  # fmt: skip
    assert failure["affected_count"] == 1
    await until(lambda: gateway.api("GET", f"/tenants/{endpoint.tenant}/processes")["items"] == [], 20)
    reader = gateway.key(endpoint.tenant, ["tenant:read"])
    (hidden,) = shown(endpoint, key=reader)["failures"]
    assert (hidden["detail"], hidden["stderr"], hidden["affected"]) == ("exit status 5", [], [])


async def test_a_server_that_never_answers_initialize_is_a_failure(gateway: Gateway) -> None:
    endpoint = gateway.endpoint([*MISBEHAVE, "silent"], timeouts={"initialize_s": 0.5})
    await refused(endpoint)
    failure = await has_failed(endpoint)
    assert (failure["kind"], failure["method"], failure["before_handshake"]) == ("timeout", "initialize", True)
    shared = gateway.endpoint([*MISBEHAVE, "silent"], timeouts={"initialize_s": 0.5}, isolation="shared")
    await refused(shared)
    failure = await has_failed(shared)
    assert (failure["kind"], failure["before_handshake"]) == ("not_initialized", True)
    assert "did not answer `initialize`" in failure["detail"]


@pytest.mark.parametrize("how", [{"isolation": "shared"}, {"recovery": "respawn"}], ids=str)
async def test_a_process_that_is_killed_has_affected_all_its_sessions(gateway: Gateway, how: dict[str, str]) -> None:
    endpoint = gateway.endpoint(STATELESS, **how)
    async with wire(endpoint) as one, wire(endpoint) as two:
        processes = gateway.api("GET", f"/tenants/{endpoint.tenant}/processes")["items"]
        pid = next(each["pid"] for each in processes if public(one) in each["sessions"])
        os.kill(pid, signal.SIGKILL)
        failure = await has_failed(endpoint)
        assert (failure["kind"], failure["detail"]) == ("signaled", "signal 9 (SIGKILL)")
        assert (failure["pid"], failure["before_handshake"]) == (pid, False)
        affected = {each["session"] for each in failure["affected"]}
        assert affected == ({public(one), public(two)} if "isolation" in how else {public(one)})


async def test_secrets_of_the_environment_are_masked(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(
        [sys.executable, "-I", "-S", "-c", TELLS_SECRETS], env={"TOKEN": "swordfish-1234"}, warm=0
    )
    await refused(endpoint)
    failure = await has_failed(endpoint)
    assert failure["stderr"] == ["cannot log in with ***"]
    assert "swordfish" not in gateway.log.read_text(errors="replace")
