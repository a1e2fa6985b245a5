"""Signing in and out."""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.console.passage import is_same_origin
from app.console.rest import Refused, Rest
from app.console.sessions import ConsoleSessions, SignedIn, cookie_of, set_cookie
from app.console.visit import HEADERS, Templates
from app.domain import is_name

MAX_FORM_BYTES = 64 << 10  # a token may be long
_NO_KEY = "Enter an API key, as `trunkline keys create` shows it."
_NEVER = datetime.max.replace(tzinfo=UTC)
_is_page = re.compile(r"/console(?:[/?][\w/?=&%.:~+-]*)?", re.ASCII).fullmatch
HOME, SIGN_IN = "/console", "/console/sign-in"


class Signing:
    """The pages of people who have not signed in, and their cookies."""

    def __init__(self, sessions: ConsoleSessions, rest: Rest, templates: Templates, public_url: str | None) -> None:
        self._sessions, self._rest, self._templates, self._public_url = sessions, rest, templates, public_url

    def is_https(self, request: Request) -> bool:
        """Whether browsers reach us by https."""
        return (self._public_url or str(request.url)).startswith("https:")

    async def who(self, request: Request) -> SignedIn | None:
        """Whose cookie it is. Raises StorageUnavailable."""
        cookie = cookie_of(request.scope["headers"], is_https=self.is_https(request))
        return None if cookie is None else await self._sessions.find(cookie)

    async def show(self, request: Request) -> Response:
        """The form."""
        return self._form(to=_target(request.query_params.get("to")))

    def sign_in_first(self, request: Request) -> Response:
        """For a page that needs it; the page comes afterwards. A link on another site brings no cookie: the
        page is asked for once more, by a page of ours."""
        if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
            return self._templates.response("again.html", {"to": _target(_here(request))})
        to = _target(_here(request))
        query = "" if to == HOME else "?" + urlencode({"to": to})
        return RedirectResponse(SIGN_IN + query, 303, headers=HEADERS)

    async def sign_in(self, request: Request) -> Response:
        """Takes an API key or a token."""
        form = await _form(request)
        to = _target(form.get("to"))
        if not is_same_origin(dict(request.scope["headers"])):
            return self._form(to=to, status=403, error="Please send the form from this page.")
        key, tenant = form.get("key", "").strip(), form.get("tenant", "").strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            return self._form(to=to, status=422, error=_NO_KEY)
        if tenant and not is_name(tenant):
            return self._form(to=to, status=422, error="This is no name of a tenant.")
        return await self._signed_in(request, tenant, b"Bearer " + key.encode(), to)

    async def _signed_in(self, request: Request, tenant: str, authorization: bytes, to: str) -> Response:
        try:
            me = await self._me(request, tenant, authorization)
        except Refused as refused:
            return self._form(to=to, status=refused.status, error=str(refused))
        until = None if me["expires_at"] is None else datetime.fromisoformat(me["expires_at"])
        cookie = await self._sessions.begin(me["tenant"], authorization, until)
        answer = RedirectResponse(to, 303, headers=HEADERS)
        answer.raw_headers.append((b"set-cookie", set_cookie(cookie, is_https=self.is_https(request))))
        return answer

    async def _me(self, request: Request, tenant: str, authorization: bytes) -> Any:
        nobody = SignedIn(tenant, authorization, "", b"", _NEVER)
        return await self._rest.get(request.scope, nobody, f"/tenants/{tenant}/me" if tenant else "/me")

    async def sign_out(self, request: Request) -> Response:
        """Ends the session, here and everywhere."""
        signed_in, form = await self.who(request), await _form(request)
        is_asked = is_same_origin(dict(request.scope["headers"])) and signed_in is not None
        if not is_asked or signed_in is None or form.get("csrf") != signed_in.csrf:
            return self._form(to=HOME, status=403, error="Please send the form from a page of the console.")
        await self._sessions.end(signed_in)
        answer = RedirectResponse(SIGN_IN, 303, headers=HEADERS)
        answer.raw_headers.append((b"set-cookie", set_cookie(b"", is_https=self.is_https(request))))
        return answer

    def _form(self, *, to: str, status: int = 200, error: str = "") -> HTMLResponse:
        return self._templates.response("sign_in.html", {"to": to, "error": error}, status)


def _here(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def _target(to: str | None) -> str:
    """Where to go afterwards: a page of the console, whatever was asked for."""
    if to is None or not _is_page(to) or ".." in to or to.startswith((SIGN_IN, HOME + "/-")):
        return HOME
    return to


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form. Of several with one name none counts; what is too long has none."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body.extend(chunk)
            if len(body) > MAX_FORM_BYTES:
                return {}
    except ClientDisconnect:
        return {}
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items() if len(values) == 1}
