"""An inspection as a test sees it."""

from typing import Any

from tests.integration.gateway import Endpoint, Gateway


def session_of(endpoint: Endpoint) -> str:
    """The only session of its tenant."""
    (row,) = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return str(row["id"])


class Inspected:
    """An inspection of a tenant's only session; `messages` are those that were not read yet."""

    def __init__(self, endpoint: Endpoint, gateway: Gateway | None = None, **body: Any) -> None:
        self.gateway = gateway or endpoint.gateway
        self.path = f"/tenants/{endpoint.tenant}/inspections"
        if "backend" not in body:
            body = {"session": session_of(endpoint), **body}
        asked = {"reason": "a test looks", "payloads": True, **body}
        self.about = self.gateway.api("POST", self.path, asked)
        self.path += f"/{self.about['id']}"
        self.after = 0

    def messages(self) -> list[Any]:
        page = self.gateway.api("GET", f"{self.path}/messages?after={self.after}")
        self.after = page["next_after"]
        return list(page["items"])

    def now(self) -> Any:
        return self.gateway.api("GET", self.path)


def shape(messages: list[Any]) -> list[tuple[str, str, str, str]]:
    return [(each["side"], each["direction"], each["kind"], each["method"]) for each in messages]


CALL = [
    ("client", "to_server", "request", "tools/call"),
    ("backend", "to_server", "request", "tools/call"),
    ("backend", "to_client", "result", "tools/call"),
    ("client", "to_client", "result", "tools/call"),
]


def trail(endpoint: Endpoint) -> list[str]:
    found = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/audit?action=inspection.*")["items"]
    return [each["action"] for each in found]
