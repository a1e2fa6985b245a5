"""What a browser does with the console's cookies and forms, without scripts."""

import re
from types import TracebackType
from typing import Self

import httpx2

from tests.integration.gateway import Gateway


class Browser:
    """Keeps cookies, sends Origin with forms, and follows no redirect."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.http = gateway, httpx2.Client(base_url=gateway.url, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    @property
    def from_here(self) -> dict[str, str]:
        return {"Origin": self.gateway.url, "Sec-Fetch-Site": "same-origin"}

    def sign_in(self, key: str, to: str = "/console", **headers: str) -> httpx2.Response:
        return self.http.post("/console/sign-in", data={"key": key, "to": to}, headers={**self.from_here, **headers})

    def page(self, path: str = "", **headers: str) -> httpx2.Response:
        return self.http.get("/console" + path, headers=headers)

    @property
    def csrf(self) -> str:
        found = re.search(r'data-csrf="([0-9a-f]{64})"', self.page().text)
        assert found is not None
        return found[1]

    def rest(self, method: str, path: str, body: object = None, **headers: str) -> httpx2.Response:
        """As a script of the page asks."""
        given = {**self.from_here, "X-CSRF-Token": self.csrf, **headers}
        return self.http.request(method, "/console/-" + path, json=body, headers=given)
