"""Every operation of the REST API with every kind of object and each of its query parameters: none is a 500."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx2

from app.admin.router import PREFIX
from tests.admin.rig import shared_api
from tests.integration.gateway import Endpoint, Gateway
from tests.integration.toolboxes import TOOLBOX
from tests.integration.wire import RpcError, wire

ORDER = ("GET", "POST", "PATCH", "DELETE")
TEXTS = ("", "0", "1", "say", "\u00fc%\\_*", "2026-01-01T00:00:00Z")


async def test_no_operation_fails_with_any_object(gateway: Gateway) -> None:
    tenant = gateway.add_tenant()
    async with wire(_everything(gateway, tenant)) as session:
        for name in ("red_say", "twice", "nothing"):
            with suppress(RpcError):
                await session.request("tools/call", {"name": name, "arguments": {"text": "x"}})
        objects = _objects(gateway, tenant)
        failed, asked = list[str](), Asked(gateway)
        for method, path in _requests(tenant, objects):
            answer = asked(method, path)
            failed += [f"{method} {path}: {answer.text}"] if answer.status_code == 500 else []
        assert not failed, "\n".join(failed[:20])
        assert "a bug in the gateway" not in gateway.log.read_text()


class Asked:
    """Asks with another key where one has asked too often."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.headers = gateway, dict[str, str]()

    def __call__(self, method: str, path: str) -> httpx2.Response:
        body: dict[str, Any] | None = None if method in ("GET", "DELETE") else {}
        answer = self.gateway.http.request(method, path, json=body, headers=self.headers)
        if answer.status_code != 429 or "quota" in answer.text:
            return answer
        key = self.gateway.cli("keys", "create", "--tenant", "default", "--scope", "platform:admin")["key"]
        self.headers = {"Authorization": f"Bearer {key}"}
        return self(method, path)


def _everything(gateway: Gateway, tenant: str) -> Endpoint:
    """The toolset of a tenant that has something of every kind."""
    at = f"/tenants/{tenant}"
    gateway.add_backend(tenant, "red", TOOLBOX[0], [*TOOLBOX[1:], "red"], pin="warn")
    gateway.add_backend(tenant, "dead", "false")
    gateway.add_backend(tenant, "off", "cat", enabled=False, reason="x")
    gateway.api("POST", at + "/backends", {"name": "far", "url": "https://far.invalid/mcp", "enabled": False})
    gateway.api("POST", at + "/guides", {"name": "style", "title": "Style", "text": "How to say things"})
    members = [{"backend": name} for name in ("red", "dead", "off", "far")]
    for name, mode in (("all", "list"), ("found", "search")):
        gateway.api("POST", at + "/toolsets", {"name": name, "members": members, "mode": mode, "guides": ["*"]})
    gateway.api("PATCH", at, {"sign_in": {}})
    gateway.api("POST", at + "/clients", {"name": "desk", "redirect_uris": ["https://desk.example/callback"]})
    recipe = {"name": "twice", "toolset": "all", "steps": [{"id": "a", "tool": "red_say"}]}
    gateway.api("POST", at + "/recipes", recipe)
    issuer = {"issuer": "https://idp.example", "algorithms": ["HS256"], "secret": "s" * 32}
    gateway.api("POST", at + "/issuers", issuer)
    gateway.api("PATCH", at + "/principals", {"issuer": issuer["issuer"], "subject": "eve", "enabled": False})
    return Endpoint(gateway, tenant, "all", f"{gateway.url}/t/{tenant}/all", gateway.key(tenant))


def _objects(gateway: Gateway, tenant: str) -> dict[str, str]:
    """One of every kind, by name of the parameter, and more."""
    asked = {"backend": "all", "reason": "a test looks", "payloads": True}
    inspection = gateway.api("POST", f"/tenants/{tenant}/inspections", asked)["id"]
    found = {"inspection": inspection, "backend": "red", "toolset": "all", "guide": "style", "recipe": "twice"}
    found |= {"client": "desk", "connection": "0123456789abcdef"}
    for kind in ("session", "process", "key", "issuer"):
        kinds = "processes" if kind == "process" else kind + "s"
        found[kind] = gateway.api("GET", f"/tenants/{tenant}/{kinds}")["items"][0]["id"]
    return found | {"message": "1", "1": "found", "2": "dead", "3": "off", "4": "far", "5": "nowhere", "node": "n1"}


def _requests(tenant: str, objects: dict[str, str]) -> Iterator[tuple[str, str]]:
    paths, last = shared_api().openapi()["paths"], f"{PREFIX}/tenants/{{tenant}}"
    operations = [
        (method.upper(), path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if path.startswith(PREFIX)
        and path.replace(PREFIX, last) not in paths  # else it is the same for the key's tenant
    ]
    for method, path, operation in sorted(operations, key=lambda each: (ORDER.index(each[0]), each[1] == last)):
        names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        right = path.format_map({**objects, "tenant": tenant})
        yield method, right
        if method == "GET":
            yield from ((method, right + query) for query in _queries(operation, objects))
        for name in names:
            if name != "tenant" and method != "DELETE":
                for each in dict.fromkeys(objects.values()):
                    yield method, path.format_map({**objects, "tenant": tenant, name: each})


def _queries(operation: dict[str, Any], objects: dict[str, str]) -> Iterator[str]:
    parameters = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    needed = "".join(f"&{each['name']}=style" for each in parameters if each.get("required"))
    for each in parameters:
        values = [*each["schema"].get("enum", ()), *TEXTS, *dict.fromkeys(objects.values())]
        for value in values:
            others = "" if each.get("required") else needed
            yield f"?{each['name']}={quote(str(value), safe='')}{others}"
