"""Who signs in with an identity provider is known with all that counts of them."""

from types import SimpleNamespace
from typing import Any

from starlette.requests import Request

from app.admin.resources.me import _answer
from app.console.signing import Signing
from app.domain import Principal
from app.http.dependencies import BASE_URL

BOB = Principal("acme", "https://idp.example", "bob", frozenset({"mcp:connect"}), groups=frozenset({"b", "a"}))


class Around:
    """Everything that Signing asks, and what it tells the authorization servers."""

    def __init__(self) -> None:
        self.known: list[tuple[Principal, str | None]] = []

    async def finish(self, *_: object) -> Any:
        tokens = SimpleNamespace(token="token", refresh_token="again")
        return SimpleNamespace(tenant="acme", tokens=tokens, to="/console")

    async def get(self, *_: object) -> Any:
        return _answer(BOB).model_dump(mode="json")

    async def begin(self, *_: object) -> bytes:
        return b"cookie"

    async def signed_in(self, person: Principal, refresh_token: str | None) -> None:
        self.known.append((person, refresh_token))

    def spend(self, key: object) -> None: ...

    def response(self, *_: object) -> Any:
        return SimpleNamespace(headers={}, raw_headers=[])


async def test_with_the_groups_that_lists_of_access_name():
    around: Any = Around()
    signing = Signing(around, around, around, around, around, around, None)
    scope = {
        "type": "http", "method": "GET", "path": "/console/sign-in/back", "query_string": b"", "headers": [],
        "client": ("127.0.0.1", 1), "scheme": "http", "server": ("gateway.example", 80), BASE_URL: "http://x",
    }  # fmt: skip
    await signing.back(Request(scope))
    assert around.known == [(BOB, "again")]
