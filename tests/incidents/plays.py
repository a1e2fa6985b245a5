"""The twelve incidents: each function brings one about, and returns what the person on call was told (environment)."""

import time
from collections.abc import Callable

import httpx2

from tests.auth.test_jwks import jwk
from tests.incidents.stage import TROUBLE, Stage
from tests.integration.gateway import ECHO
from tests.integration.test_jwt import KEYS, token

Play = Callable[[Stage], dict[str, str]]
WITHIN_S = 30.0


def reason_of(answer: httpx2.Response) -> str | None:
    """Why it was refused, if it was."""
    reason: str | None = answer.json().get("error", {}).get("data", {}).get("reason")
    return reason


def crash_loop(stage: Stage) -> dict[str, str]:
    """A backend of a tenant ends whenever it is started."""
    stage.add_backend(stage.tenant, "billing", [*TROUBLE, "needs", "BILLING_TOKEN"])
    client = stage.client(stage.first, stage.tenant, "billing")
    stage.wait(lambda: client.open().json()["error"]["data"]["reason"] == "backend_unavailable")
    return {}


def memory(stage: Stage) -> dict[str, str]:
    """One process of many takes what there is."""
    stage.add_backend(stage.tenant, "reports", TROUBLE)
    greedy, modest = (stage.client(node, stage.tenant, "reports") for node in (stage.second, stage.first))
    assert greedy.open().status_code == modest.open().status_code == 200
    assert greedy.call("eat", mib=256).status_code == 200
    most = "/tenants/-/processes?sort=memory&limit=1"  # it is measured now and then
    stage.wait(lambda: stage.first.api("GET", most)["items"][0]["resident_bytes"] > 256 << 20)
    return {}


def confined_backend(stage: Stage) -> dict[str, str]:
    """A backend needs a file that its sandbox does not show it."""
    accounts = stage.directory / "accounts.csv"
    accounts.write_text("1000,cash")
    stage.add_backend(
        stage.tenant, "ledger", [*TROUBLE, "opens", "ACCOUNTS"], env={"ACCOUNTS": str(accounts)}, sandbox={}
    )
    answer = stage.client(stage.first, stage.tenant, "ledger").open()
    assert answer.json()["error"]["data"]["reason"] == "backend_exited", answer.text
    return {"ACCOUNTS": str(accounts)}


def memory_limit(stage: Stage) -> dict[str, str]:
    """A process of a backend is killed at its memory limit, whenever it is asked for much."""
    stage.add_backend(stage.tenant, "charts", TROUBLE, limits={"memory_mb": 100})
    client = stage.client(stage.second, stage.tenant, "charts")
    assert client.open().status_code == 200
    client.call("eat", mib=300)
    stage.wait(lambda: stage.second.metrics()['trunkline_limits_hit_total{limit="memory"}'] >= 1)
    return {}


def hanging_tool(stage: Stage) -> dict[str, str]:
    """One tool of a backend never answers, the others do."""
    stage.add_backend(stage.tenant, "search", TROUBLE, timeouts={"call_s": 1.0})
    client = stage.client(stage.second, stage.tenant, "search")
    assert client.open().status_code == 200
    assert "error" not in client.call("fine").json()
    for _ in range(3):
        assert client.call("hang").json()["error"]["data"]["reason"] == "timeout"
    return {}


def stolen_key(stage: Stage) -> dict[str, str]:
    """A key that one machine has used is used from elsewhere, a thousand times."""
    stage.add_backend(stage.tenant, "notes", ECHO)
    key = stage.first.key(stage.tenant)
    owner = stage.client(stage.first, stage.tenant, "notes", key)
    thief = stage.client(stage.first, stage.tenant, "notes", key, address="198.51.100.23", program="curl")
    assert owner.open().status_code == thief.open().status_code == 200
    assert owner.call("echo", text="x").status_code == 200
    for _ in range(1000):
        assert thief.call("echo", text="x").status_code == 200
    return {}


def rotated_keys(stage: Stage) -> dict[str, str]:
    """An identity provider signs with a key that it does not publish."""
    idp = stage.identity_provider()
    stage.add_backend(stage.tenant, "crm", ECHO)
    body = {"issuer": idp.url, "algorithms": ["RS256"], "jwks_url": idp.url + "/jwks", "audience": ["crm"]}
    stage.first.api("POST", f"/tenants/{stage.tenant}/issuers", body)
    good = token(idp, "crm")
    assert stage.client(stage.second, stage.tenant, "crm", good).open().status_code == 200
    forgotten = dict(idp.documents())
    forgotten["/jwks"] = {"keys": [{**jwk(KEYS["RS256"], "RS256"), "kid": "2026-10"}]}
    idp.documents = lambda: forgotten  # type: ignore[method-assign]
    new = token(idp, "crm", kid="2026-11")
    refused = stage.client(stage.second, stage.tenant, "crm", new)
    assert refused.open().status_code == 401
    (stage.directory / "token.jwt").write_text(new)
    return {"TOKEN_FILE": str(stage.directory / "token.jwt")}


def no_redis(stage: Stage) -> dict[str, str]:
    """Redis is away."""
    stage.nodes.redis.kill()
    stage.wait(lambda: "redis" in stage.first.http.get("/readyz").json().get("degraded", {}))
    return {}


def three_at_once(stage: Stage) -> dict[str, str]:
    """A backend of one tenant leaks memory, a key of another tenant is used from elsewhere, one node loses Redis."""
    third = stage.node_with_a_redis_user("third")
    stage.add_backend(stage.tenant, "leaks", TROUBLE, limits={"memory_mb": 300})
    leaking = stage.client(stage.second, stage.tenant, "leaks")
    assert leaking.open().status_code == 200
    for _ in range(9):
        assert leaking.call("eat", mib=30).status_code == 200
    key = stage.first.key(stage.quiet)
    owner = stage.client(stage.first, stage.quiet, "echo", key)
    thief = stage.client(stage.first, stage.quiet, "echo", key, address="198.51.100.23", program="curl")
    assert owner.open().status_code == thief.open().status_code == 200
    for _ in range(200):
        assert thief.call("echo", text="x").status_code == 200
    stage.take_redis_from("third")
    stage.wait(lambda: "redis" in third.http.get("/readyz").json().get("degraded", {}))
    wanted = {"memory_near", "new_address", "redis", "node_lost"}
    stage.wait(lambda: wanted <= {each["kind"] for each in stage.first.api("GET", "/problems")["items"]})
    return {}


def draining_node(stage: Stage) -> dict[str, str]:
    """One node of two was told to stop, and still has a call that takes its time."""
    stage.add_backend(stage.tenant, "jobs", ECHO)
    client = stage.client(stage.second, stage.tenant, "jobs")
    assert client.open().status_code == 200
    stage.in_background(lambda: client.call("sleep", ms=25_000))
    path = f"/tenants/{stage.tenant}/sessions?limit=200"
    stage.wait(
        lambda: any(each["calls"] for each in stage.first.api("GET", path)["items"] if each["backend"] == "jobs")
    )
    stage.second.terminate()
    stage.wait(lambda: any(node["draining"] for node in stage.first.api("GET", "/nodes")["items"]))
    return {}


def too_many_sessions(stage: Stage) -> dict[str, str]:
    """A tenant has as many sessions as it may."""
    stage.first.api("PATCH", f"/tenants/{stage.tenant}", {"limits": {"sessions": 3}})
    stage.add_backend(stage.tenant, "chat", ECHO)
    answers = [stage.client(node, stage.tenant, "chat").open() for node in (stage.first, stage.second) * 2]
    assert [answer.status_code for answer in answers].count(429) == 1
    return {}


def changed_command(stage: Stage) -> dict[str, str]:
    """Somebody has changed what a backend starts, and now it does something else."""
    stage.add_backend(stage.tenant, "mail", ECHO)
    body = {"command": "/bin/sleep", "args": ["3600"], "timeouts": {"initialize_s": 1.0}}
    stage.second.api("PATCH", f"/tenants/{stage.tenant}/backends/mail", body)
    time.sleep(0.1)  # by then the other node has heard of it, unless the machine is busy
    stage.wait(lambda: reason_of(stage.client(stage.first, stage.tenant, "mail").open()) == "timeout")
    return {}


PLAYS: dict[str, Play] = {
    play.__name__: play
    for play in (
        crash_loop, confined_backend, memory, memory_limit, hanging_tool, stolen_key, rotated_keys, no_redis,
        draining_node, too_many_sessions, changed_command, three_at_once,
    )
}  # fmt: skip
