"""Nothing that opens anything when somebody signs in is left behind: in the log, the database, the audit trail, traces,
captures, the history of calls, or refusals."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx2
import jwt
import pytest

from tests.collector import Collector, collecting
from tests.console.browser import Browser
from tests.console.provider import CLIENT, provider
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway
from tests.integration.inspected import Inspected
from tests.integration.person import Person, Program
from tests.integration.test_sign_in import asked
from tests.integration.wire import wire


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def gateway(tmp_path: Path, collector: Collector) -> Iterator[Gateway]:
    seen = {"LOG_LEVEL": "debug", "ACCESS_LOG": "all", "CALLS_KEPT_DAYS": "1", "TRACE_SAMPLE": "1"}
    outward = {"OUTBOUND_ALLOW": "127.0.0.0/8", "OTLP_ENDPOINT": collector.url}
    with running_gateway(tmp_path / "data", **seen, **outward) as gateway:
        yield gateway


async def test_no_code_token_secret_or_cookie_is_left_behind(gateway: Gateway, collector: Collector) -> None:
    endpoint, hidden, said = gateway.endpoint(ECHO), dict[str, str](), list[str]()
    path = f"/tenants/{endpoint.tenant}"
    gateway.api("PATCH", path, {"sign_in": {}})

    def refused(answer: httpx2.Response) -> None:
        assert answer.status_code >= 400
        said.append(answer.text + repr(answer.headers))

    with httpx2.Client(timeout=30) as http, Browser(gateway) as browser, provider() as idp:
        program = Program(http, f"{gateway.url}/oauth/{endpoint.tenant}", endpoint.mcp)
        # With a key; and everything once more that was used already, or is wrong.
        program.register()
        hidden["verifier"], hidden["code"] = program.verifier, program.answer(Person(browser, endpoint.key))["code"]
        refused(program.redeem(hidden["code"], code_verifier=secrets.token_urlsafe(40)))
        tokens = program.redeem(hidden["code"]).json()
        hidden |= {"access": tokens["access_token"], "refresh": tokens["refresh_token"]}
        by_token = Endpoint(gateway, endpoint.tenant, endpoint.name, endpoint.base, tokens["access_token"])
        async with wire(by_token) as session:
            captured = Inspected(endpoint)
            assert await session.call("echo", text="seen") == "seen"
            seen = json.dumps(captured.messages())
        hidden["next refresh"] = program.refresh(hidden["refresh"]).json()["refresh_token"]
        hidden["last access"] = program.refresh(hidden["next refresh"]).json()["access_token"]
        refused(program.refresh(hidden["refresh"]))
        refused(asked(endpoint, hidden["access"]))
        # By itself.
        made = gateway.api("POST", f"{path}/clients", {
            "name": "batch", "authentication": "secret", "scopes": ["mcp:connect"],
        })  # fmt: skip
        form = {"grant_type": "client_credentials", "client_id": "batch"}
        hidden |= {"client secret": made["secret"], "another secret": f"tls_{secrets.token_urlsafe(24)}"}
        hidden["own access"] = program.token({**form, "client_secret": hidden["client secret"]}).json()["access_token"]
        refused(program.token({**form, "client_secret": hidden["another secret"]}))
        # With a provider, which knows the gateway by a secret; and by what a company's provider vouches for.
        hidden["the gateway's secret"] = secrets.token_urlsafe(24)
        made = gateway.api("POST", f"{path}/issuers", {
            "issuer": idp.url, "algorithms": ["RS256"], "audience": [idp.audience], "max_scopes": ["mcp:connect"],
            "discovery_url": idp.url + "/.well-known/openid-configuration",
            "sign_in": {"client_id": CLIENT, "client_secret": hidden["the gateway's secret"]},
        })  # fmt: skip
        idp.claims = {"scope": "mcp:connect"}
        with Browser(gateway) as other:
            to = program.address().removeprefix(gateway.url)
            asked_for = {"tenant": endpoint.tenant, "issuer": made["id"], "to": to}
            url = other.http.get("/console/sign-in/with", params=asked_for).headers["location"]
            back = httpx2.get(url).headers["location"]
            assert other.http.get(back).status_code == 200
            hidden["second code"] = program.answer(Person(other, ""))["code"]
            hidden |= {f"cookie {each.name}": each.value for each in other.http.cookies.jar if each.value}
        hidden |= {f"cookie {each.name} of a key": each.value for each in browser.http.cookies.jar if each.value}
        hidden["assertion"] = jwt.encode(
            {"iss": idp.url, "sub": "alice", "client_id": "batch"},
            secrets.token_bytes(32),
            headers={"typ": "oauth-id-jag+jwt"},
        )
        grant = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": hidden["assertion"]}
        refused(program.token({**form, **grant, "client_secret": hidden["client secret"]}))
        hidden |= {f"of the provider {number}": each for number, each in enumerate(idp.told)}
    assert len(hidden) >= 16
    places = {
        "capture": seen,
        "audit": json.dumps(gateway.api("GET", f"{path}/audit?limit=200")),
        "calls": json.dumps(gateway.api("GET", f"{path}/calls?limit=200")),
        "connections": json.dumps(
            [gateway.api("GET", f"{path}/{each}") for each in ("connections", "clients", "issuers")]
        ),
        "refusals": "\n".join(said),
    }
    gateway.stop()
    places["log"] = gateway.log.read_text(errors="replace")
    places["traces"] = b"".join(collector.raw).decode(errors="replace")
    for file in gateway.data_dir.rglob("*"):
        if file.is_file():
            places[file.name] = file.read_bytes().decode("latin-1")
    for place, words in (("audit", "batch"), ("calls", "tools/call"), ("log", "/token"), ("trunkline.db", "batch")):
        assert words in places[place], place
    assert collector.spans
    found = [
        (what, place) for place, text in places.items() for what, value in hidden.items() if _stands_in(value, text)
    ]
    assert found == []


def _stands_in(value: str, text: str) -> bool:
    """Whole, or what is secret of a token."""
    return value in text or (value.count(".") == 2 and value.rpartition(".")[2] in text)
