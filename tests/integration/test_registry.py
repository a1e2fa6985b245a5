"""The registry of a tenant, over a socket, as an editor asks it: who may read it, what it says and what not."""

import sys
from collections.abc import Callable

import httpx2
import jsonschema
import pytest

from tests.integration.gateway import Gateway

OFFICIAL = "io.modelcontextprotocol.registry/official"
MOMENT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
INPUT = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "value": {"type": "string"},
        "description": {"type": "string"},
        "isRequired": {"type": "boolean"},
        "isSecret": {"type": "boolean"},
        "format": {"enum": ["string", "number", "boolean", "filepath"]},
        "variables": {"type": "object", "additionalProperties": {"type": "object"}},
    },
    "additionalProperties": False,
}
# Of server.json and the registry's answers, as far as a gateway fills them in; nothing else may be there.
SERVER = {
    "type": "object",
    "required": ["$schema", "name", "description", "version", "remotes"],
    "properties": {
        "$schema": {"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"},
        "name": {"type": "string", "maxLength": 200, "pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "remotes": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "url"],
                "properties": {
                    "type": {"enum": ["streamable-http", "sse"]},
                    "url": {"type": "string", "pattern": r"^https?://[^\s]+$"},
                    "headers": {"type": "array", "items": {**INPUT, "required": ["name"]}},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "required": ["server", "_meta"],
    "properties": {
        "server": SERVER,
        "_meta": {
            "type": "object",
            "required": [OFFICIAL],
            "properties": {
                OFFICIAL: {
                    "type": "object",
                    "required": ["status", "publishedAt", "updatedAt", "isLatest"],
                    "properties": {
                        "status": {"enum": ["active", "deprecated", "deleted"]},
                        "statusChangedAt": MOMENT,
                        "publishedAt": MOMENT,
                        "updatedAt": MOMENT,
                        "isLatest": {"type": "boolean"},
                    },
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
LIST = {
    "type": "object",
    "required": ["servers", "metadata"],
    "properties": {
        "servers": {"type": "array", "items": ANSWER},
        "metadata": {
            "type": "object",
            "required": ["count"],
            "properties": {"count": {"type": "integer"}, "nextCursor": {"type": "string", "minLength": 1}},
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
PRIVATE = "s3cret-and-private"


def tenant_with_servers(gateway: Gateway, mode: str) -> str:
    tenant = gateway.add_tenant()
    backends = (
        {"name": "alpha", "command": sys.executable, "args": [PRIVATE], "env": {"TOKEN": PRIVATE}},
        {"name": "beta", "url": f"https://{PRIVATE}.example/mcp", "headers": {"X-Key": PRIVATE}},
        {"name": "gone", "command": "cat", "enabled": False, "reason": PRIVATE},
    )
    for body in backends:
        gateway.api("POST", f"/tenants/{tenant}/backends", body)
    gateway.api("POST", f"/tenants/{tenant}/toolsets", {"name": "work", "title": "Everything", "instructions": PRIVATE})
    gateway.api("PATCH", f"/tenants/{tenant}", {"registry": mode})
    return tenant


def ask(gateway: Gateway, tenant: str, path: str = "", key: str | None = None, **more: object) -> httpx2.Response:
    headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **more.pop("headers", {})}  # type: ignore[dict-item]
    return httpx2.get(f"{gateway.url}/registry/{tenant}/v0.1/servers{path}", headers=headers, **more)  # type: ignore[arg-type]


def names(answer: httpx2.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["server"]["name"].rpartition(".")[2] for each in answer.json()["servers"]]


@pytest.fixture(scope="module")
def public(gateway: Gateway) -> str:
    return tenant_with_servers(gateway, "public")


def test_everybody_reads_a_public_registry_and_nothing_private(gateway, public):
    answer = ask(gateway, public)
    jsonschema.validate(answer.json(), LIST)
    assert names(answer) == ["alpha", "beta", "work"]
    assert PRIVATE not in answer.text
    assert sys.executable not in answer.text
    alpha, _, work = (each["server"] for each in answer.json()["servers"])
    assert alpha["name"] == f"local.gateway/{public}.alpha"
    assert work["title"] == "Everything"
    (remote,) = alpha["remotes"]
    assert (remote["type"], remote["url"]) == ("streamable-http", f"{gateway.url}/t/{public}/alpha/mcp")
    (header,) = remote["headers"]
    assert (header["name"], header["value"]) == ("Authorization", "Bearer {key}")
    assert (header["variables"]["key"]["isRequired"], header["variables"]["key"]["isSecret"]) == (True, True)


def test_what_the_registry_says_is_how_a_client_gets_in(gateway):
    tenant = gateway.add_tenant()
    gateway.add_backend(tenant, "echo", sys.executable, ["-I", "-S", str(_echo())])
    gateway.api("PATCH", f"/tenants/{tenant}", {"registry": "public"})
    (remote,) = ask(gateway, tenant).json()["servers"][0]["server"]["remotes"]
    headers = {each["name"]: each["value"].format(key=gateway.key(tenant)) for each in remote["headers"]}
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    accepted = {"Accept": "application/json, text/event-stream"}
    answer = httpx2.post(remote["url"], json=body, headers={**headers, **accepted}, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["Mcp-Session-Id"]


def _echo() -> object:
    from tests.integration.gateway import ROOT

    return ROOT / "bench/echo_backend.py"


@pytest.mark.parametrize("write", [lambda name: name, lambda name: name.replace("/", "%2F")])
def test_one_server_by_its_name_in_the_path(gateway, public, write: Callable[[str], str]):
    name = write(f"local.gateway/{public}.alpha")
    versions = ask(gateway, public, f"/{name}/versions")
    jsonschema.validate(versions.json(), LIST)
    (only,) = versions.json()["servers"]
    version = only["server"]["version"]
    for asked in ("latest", version):
        answer = ask(gateway, public, f"/{name}/versions/{asked}")
        jsonschema.validate(answer.json(), ANSWER)
        assert answer.json() == only
    for path in (f"/{name}/versions/9.9.9", f"/{name}x/versions/latest", "/x%2Fgone/versions", f"/{name}"):
        assert ask(gateway, public, path).status_code == 404, path
    assert ask(gateway, public, f"/{name}/versions/9.9.9").json() == {"error": "Server not found"}


def test_pages_and_filters(gateway, public):
    first = ask(gateway, public, params={"limit": 2})
    assert (names(first), first.json()["metadata"]) == (["alpha", "beta"], {"count": 2, "nextCursor": "beta"})
    second = ask(gateway, public, params={"limit": 2, "cursor": "beta"})
    assert (names(second), second.json()["metadata"]) == (["work"], {"count": 1})
    assert names(ask(gateway, public, params={"search": "ALPH"})) == ["alpha"]
    assert names(ask(gateway, public, params={"search": "every"})) == ["work"]
    assert names(ask(gateway, public, params={"version": "latest"})) == ["alpha", "beta", "work"]
    assert names(ask(gateway, public, params={"version": "1.0.2"})) == []
    assert names(ask(gateway, public, params={"updated_since": "2000-01-01T00:00:00.000Z"})) == [
        "alpha",
        "beta",
        "work",
    ]
    assert names(ask(gateway, public, params={"updated_since": "2900-01-01T00:00:00Z"})) == []
    assert names(ask(gateway, public, params={"include_deleted": "true"})) == ["alpha", "beta", "work"]
    assert ask(gateway, public, params={"updated_since": "yesterday"}).status_code == 422
    assert ask(gateway, public, params={"limit": 0}).status_code == 422
    assert len(names(ask(gateway, public, params={"limit": 10_000}))) == 3


def test_a_change_is_another_version_and_is_found_by_its_time(own_gateway):
    tenant = tenant_with_servers(own_gateway, "public")
    before = ask(own_gateway, tenant)
    assert ask(own_gateway, tenant, headers={"If-None-Match": before.headers["ETag"]}).status_code == 304
    assert before.headers["Cache-Control"] == "public, max-age=60"
    own_gateway.api("PATCH", f"/tenants/{tenant}/backends/beta", {"timeouts": {"call_s": 5}})
    until(lambda: ask(own_gateway, tenant).headers["ETag"] != before.headers["ETag"])
    beta = ask(own_gateway, tenant, params={"search": "beta"}).json()["servers"][0]
    assert beta["server"]["version"] == "1.0.2"
    own_gateway.api("PATCH", f"/tenants/{tenant}/toolsets/work", {"title": "Work"})
    until(lambda: '"Work"' in ask(own_gateway, tenant).text)


def test_without_a_tenant_it_is_the_registry_of_default(own_gateway):
    url, page = own_gateway.url, {"Origin": "https://vscode.dev"}
    assert httpx2.get(f"{url}/v0.1/servers").status_code == 401
    assert httpx2.options(f"{url}/v0.1/servers", headers=page).status_code == 204
    own_gateway.api("POST", "/tenants/default/backends", {"name": "alpha", "command": "cat"})
    own_gateway.api("PATCH", "/tenants/default", {"registry": "public"})
    until(lambda: httpx2.get(f"{url}/v0.1/servers").status_code == 200)
    listed = httpx2.get(f"{url}/v0.1/servers", headers=page)
    assert listed.headers["Access-Control-Allow-Origin"] == "*"
    assert listed.json() == ask(own_gateway, "default").json()
    assert names(listed) == ["alpha"]
    one = httpx2.get(f"{url}/v0.1/servers/local.gateway%2Fdefault.alpha/versions/latest")
    assert one.json() == listed.json()["servers"][0]
    assert httpx2.get(f"{url}/v0.1/servers", params={"tenant": "other"}).json() == listed.json()
    assert httpx2.get(f"{url}/v0.1/health").json() == {"error": "Server not found"}


def until(is_so: Callable[[], bool]) -> None:
    """Lists are remembered for two seconds."""
    import time

    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_registry_with_keys_shows_what_the_key_may_connect_to(gateway):
    tenant, other = tenant_with_servers(gateway, "keys"), gateway.add_tenant()
    assert names(ask(gateway, tenant, key=gateway.key(tenant))) == ["alpha", "beta", "work"]
    assert names(ask(gateway, tenant, key=gateway.key(tenant, ["mcp:connect:beta"]))) == ["beta"]
    assert names(ask(gateway, tenant, key=gateway.key(tenant, ["tenant:read"]))) == ["alpha", "beta", "work"]
    answer = ask(gateway, tenant, key=gateway.key(tenant))
    assert (answer.headers["Cache-Control"], answer.headers["Vary"]) == (
        "private, no-cache",
        "Authorization, X-API-Key, Host",
    )
    one = gateway.key(tenant, ["mcp:connect:beta"])
    hidden = ask(gateway, tenant, f"/local.gateway%2F{tenant}.alpha/versions/latest", key=one)
    assert hidden.status_code == 404
    assert ask(gateway, tenant, key=gateway.key(other)).status_code == 404


def test_without_a_credential_all_tenants_that_are_not_public_are_alike(gateway, public):
    off, keys = tenant_with_servers(gateway, "off"), tenant_with_servers(gateway, "keys")
    dark = tenant_with_servers(gateway, "public")
    gateway.api("PATCH", f"/tenants/{dark}", {"enabled": False, "reason": "x"})
    until(lambda: ask(gateway, dark).status_code == 401)
    answers = [ask(gateway, tenant, headers={"X-Request-Id": "same"}) for tenant in (off, keys, dark, "unknown", "UP")]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    key = gateway.key(off)
    assert ask(gateway, off, key=key).status_code == 404
    assert ask(gateway, off, key="tlk_wrong").status_code == 401
    # Who reads a public one need not have a credential, and a wrong one does not matter.
    assert ask(gateway, public, key="tlk_wrong").status_code == 200


def test_it_is_off_unless_the_platform_says_otherwise(gateway):
    tenant = gateway.add_tenant()
    assert gateway.api("GET", f"/tenants/{tenant}")["registry"] == "off"
    key = gateway.key(tenant, ["tenant:admin"])
    gateway.api("PATCH", f"/tenants/{tenant}", {"registry": "public"}, key=key, expect=403)
    gateway.api("PATCH", f"/tenants/{tenant}", {"registry": "everybody"}, expect=422)
    gateway.api("PATCH", f"/tenants/{tenant}", {"registry": "keys"})
    gateway.api("PATCH", f"/tenants/{tenant}", {"registry": None})
    assert gateway.api("GET", f"/tenants/{tenant}")["registry"] == "off"


def test_pages_of_any_origin_may_read_it_and_nothing_else(gateway, public):
    origin = {"Origin": "vscode-file://vscode-app"}
    answer = ask(gateway, public, headers=origin)
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, "*")
    preflight = httpx2.options(f"{gateway.url}/registry/{public}/v0.1/servers", headers=origin)
    assert (preflight.status_code, preflight.headers["Access-Control-Allow-Methods"]) == (204, "GET, OPTIONS")
    assert {"Authorization", "X-API-Key"} <= set(preflight.headers["Access-Control-Allow-Headers"].split(", "))
    assert httpx2.post(f"{gateway.url}/registry/{public}/v0.1/servers", headers=origin, json={}).status_code == 405
    assert httpx2.get(f"{gateway.url}/api/v1/tenants", headers=origin).status_code == 403
    wrong_host = ask(gateway, public, headers={"Host": "evil.example"})
    assert wrong_host.status_code == 421


def test_where_people_can_sign_in_a_key_is_not_required(gateway):
    tenant = tenant_with_servers(gateway, "public")
    issuer = {"issuer": "https://idp.example", "algorithms": ["RS256"], "jwks_url": "https://idp.example/jwks"}
    gateway.api("POST", f"/tenants/{tenant}/issuers", issuer)
    answer = ask(gateway, tenant)
    jsonschema.validate(answer.json(), LIST)
    (header,) = answer.json()["servers"][0]["server"]["remotes"][0]["headers"]
    assert (header["isRequired"], header["isSecret"]) == (False, True)
    assert "value" not in header


def test_too_many_requests_are_refused(own_gateway):
    tenant = own_gateway.add_tenant()
    statuses = list[int]()
    with httpx2.Client(base_url=own_gateway.url, timeout=30) as client:
        # Five hundred at once and twenty a second: on a busy machine it takes more than on this one.
        while 429 not in statuses and len(statuses) < 5000:
            statuses.append(client.get(f"/registry/{tenant}/v0.1/servers").status_code)
    assert 429 in statuses
    assert statuses.index(429) >= 500


def test_another_gateway_imports_what_a_registry_lists(gateway, public):
    listed = ask(gateway, public).json()
    tenant = gateway.add_tenant()
    body = {"document": listed, "env": {"key": "k3y"}}
    imported = gateway.api("POST", f"/tenants/{tenant}/backends:import", body)
    assert [each["name"] for each in imported["entries"]] == [f"{public}-{name}" for name in ("alpha", "beta", "work")]
    assert {problem for each in imported["entries"] for problem in each["problems"]} == set()
