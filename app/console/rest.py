"""Rest: the REST API, asked within this process as the person who has signed in."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI, Request
from starlette.types import Message, Scope

from app.console.sessions import SignedIn
from app.errors import GatewayError
from app.http.dependencies import BASE_URL
from app.http.problems import problem_of
from app.http.request_ids import IDS, named

MAX_ANSWER_BYTES = 32 << 20
_KEPT = frozenset({b"host", b"x-request-id", b"traceparent"})


Me = Callable[[Request], Awaitable[Mapping[str, Any]]]  # raises GatewayError


class Refused(Exception):
    """REST has refused. `problem`: its answer (RFC 9457), of which the words are kept."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        wrong = (f"{each['parameter']}: {each['detail']}" for each in problem.get("errors", ()) if "parameter" in each)
        super().__init__("; ".join(wrong) or problem.get("detail") or problem.get("title") or f"HTTP {status}")
        self.status = status
        self.title = str(problem.get("title") or f"HTTP {status}")
        self.hint, self.request_id = problem.get("hint"), problem.get("request_id")


class Rest:
    """GET requests to `api`, the application of REST, with a credential. `me` answers `…/me`, which each page and each
    renewal asks for, without the way through its routes."""

    def __init__(self, api: FastAPI, me: Me) -> None:
        self._api, self._me = api, me

    async def me(self, scope: Scope, signed_in: SignedIn) -> Mapping[str, Any]:
        """What REST answers to `…/me` of the tenant of the credential. Raises Refused."""
        tenant = signed_in.tenant
        asked = _scope(scope, signed_in.authorization, f"/tenants/{tenant}/me", {})
        request = Request({**asked, "app": self._api, "path_params": {"tenant": tenant}})
        try:
            return await self._me(request)
        except GatewayError as error:
            answer = problem_of(request, error)
            raise Refused(answer.status_code, json.loads(bytes(answer.body))) from None

    async def get(self, scope: Scope, signed_in: SignedIn, path: str, query: Mapping[str, object] | None = None) -> Any:
        """The JSON that REST answers; `scope` is the request of the page. Raises Refused."""
        text = await self.text(scope, signed_in, path, query or {})
        return json.loads(text) if text else {}

    async def text(self, scope: Scope, signed_in: SignedIn, path: str, query: Mapping[str, object]) -> str:
        """The same, as text."""
        status, body = await self._ask(_scope(scope, signed_in.authorization, path, query))
        if status < 400:
            return body.decode()
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {}
        raise Refused(status, answer if isinstance(answer, dict) else {})

    async def _ask(self, scope: Scope) -> tuple[int, bytes]:
        status, body = 500, bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body.extend(message.get("body", b""))
                if len(body) > MAX_ANSWER_BYTES:
                    raise Refused(500, {"title": "The answer is too large for a page"})

        await self._api(scope, receive, send)
        return status, bytes(body)


def _scope(outer: Scope, authorization: bytes, path: str, query: Mapping[str, object]) -> Scope:
    """Of a GET by the same client, under the same ids."""
    whole = "/api/v1" + path
    headers = [(name, value) for name, value in outer["headers"] if name in _KEPT]
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return {
        "type": "http",
        "asgi": outer["asgi"],
        "http_version": "1.1",
        "method": "GET",
        "scheme": outer.get("scheme", "http"),
        "path": whole,
        "raw_path": quote(whole, safe="/:-._~").encode(),
        "query_string": urlencode(given).encode(),
        "root_path": "",
        "headers": [*headers, (b"authorization", authorization)],
        "client": outer.get("client"),
        "server": outer.get("server"),
        BASE_URL: outer.get(BASE_URL),
        IDS: named(outer),
    }
