"""Signing in and out."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.auth.authorization.server import AuthorizationServers
from app.console.cookies import SESSION, SIGNING_IN, Reached, reached
from app.console.issuer_sign_in import IssuerSignIn, NotSignedIn
from app.console.passage import is_same_origin
from app.console.rest import Refused, Rest
from app.console.sessions import ConsoleSessions, SignedIn
from app.console.visit import HEADERS, Templates
from app.domain import Issuer, Principal, is_name
from app.http.client_address import client_address, limited_address
from app.http.dependencies import BASE_URL
from app.limits.caller_rates import RateLimiter

MAX_FORM_BYTES = 64 << 10  # a token may be long
HOME, SIGN_IN = "/console", "/console/sign-in"
_NO_KEY = "Enter an API key, as `trunkline keys create` shows it."
_NO_TENANT = "This is no name of a tenant."
_NO_ISSUER = "Nobody can sign in to this tenant with an identity provider: use a key or a token."
FOREIGN = "Please send the form from a page of the console."
_NEVER = datetime.max.replace(tzinfo=UTC)
_is_page = re.compile(
    r"/(?:console(?:[/?][\w/?=&%.:~+-]*)?|oauth/[a-z0-9-]+/authorize\?[\w/?=&%.:~+-]*)", re.ASCII
).fullmatch
# Where a program has opened a window for this, it may go on knowing it.
_FOR_PROGRAMS = {**HEADERS, "Cross-Origin-Opener-Policy": "unsafe-none"}


class Signing:
    """The pages of people who have not signed in, and their cookies."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        sessions: ConsoleSessions,
        by_issuer: IssuerSignIn,
        servers: AuthorizationServers,
        attempts: RateLimiter,
        rest: Rest,
        templates: Templates,
        public_url: str | None,
    ) -> None:
        self._sessions, self._by_issuer, self._servers, self._attempts = sessions, by_issuer, servers, attempts
        self._rest, self._templates = rest, templates
        self._public_url = public_url

    def _reached(self, request: Request) -> Reached:
        return reached(self._public_url, request.scope)

    async def who(self, request: Request) -> SignedIn | None:
        """Whose cookie it is. Raises StorageUnavailable."""
        cookie = SESSION.of(request.scope["headers"], self._reached(request))
        return None if cookie is None else await self._sessions.find(cookie)

    async def show(self, request: Request) -> Response:
        """The form; with a tenant also the providers with which one can sign in to it."""
        tenant, to = request.query_params.get("tenant", "").strip(), _target(request.query_params.get("to"))
        if not tenant:
            return self._form(to=to)
        if not is_name(tenant):
            return self._form(to=to, status=422, error=_NO_TENANT)
        self._spend(request)
        issuers = await self._by_issuer.choices(tenant)
        is_asked = to.startswith(HOME)  # else a program has sent them here, and named the tenant
        error = "" if issuers or not is_asked else _NO_ISSUER
        return self._form(to=to, tenant=tenant, issuers=issuers, error=error)

    def sign_in_first(self, request: Request, tenant: str = "") -> Response:
        """For a page that needs it, of this tenant; the page comes afterwards. A link on another site brings no cookie:
        the page is asked for once more, by a page of ours."""
        to = _target(_here(request))
        if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
            return self._again(to)
        given = {"tenant": tenant, "to": "" if to == HOME else to}
        query = urlencode({name: value for name, value in given.items() if value})
        return RedirectResponse(SIGN_IN + ("?" + query if query else ""), 303, headers=_headers(to))

    def _again(self, to: str) -> Response:
        answer = self._templates.response("again.html", {"to": to})
        answer.headers.update(_headers(to))
        return answer

    async def sign_in(self, request: Request) -> Response:
        """Takes an API key or a token."""
        form = await form_of(request)
        to = _target(form.get("to"))
        if not is_same_origin(dict(request.scope["headers"])):
            return self._form(to=to, status=403, error=FOREIGN)
        key, tenant = form.get("key", "").strip(), form.get("tenant", "").strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            return self._form(to=to, status=422, error=_NO_KEY)
        if tenant and not is_name(tenant):
            return self._form(to=to, status=422, error=_NO_TENANT)
        try:
            header, _ = await self._session(request, tenant, key)
        except Refused as refused:
            return self._form(to=to, status=refused.status, error=str(refused))
        if (earlier := await self.who(request)) is not None:  # nobody could sign out of it any more
            await self._sessions.end(earlier)
        return _redirected(to, header)

    async def with_issuer(self, request: Request) -> Response:
        """Sends somebody to an identity provider."""
        asked = request.query_params
        tenant, to = asked.get("tenant", ""), _target(asked.get("to"))
        self._spend(request)
        try:
            if not is_name(tenant):
                raise NotSignedIn(_NO_TENANT)
            url, cookie = await self._by_issuer.begin(tenant, asked.get("issuer", ""), to, request.scope[BASE_URL])
        except NotSignedIn as error:
            return self._form(to=to, status=422, error=str(error))
        return _redirected(url, SIGNING_IN.header(cookie, self._reached(request)))

    async def back(self, request: Request) -> Response:
        """Somebody comes back from the provider. The cookie of the session does not go with a request that another site
        has caused, so a page of ours goes on."""
        where = self._reached(request)
        cookie = SIGNING_IN.of(request.scope["headers"], where)
        self._spend(request)
        try:
            found = await self._by_issuer.finish(cookie, dict(request.query_params), request.scope[BASE_URL])
            header, person = await self._session(request, found.tenant, found.tokens.token)
        except (NotSignedIn, Refused) as error:
            return self._form(to=HOME, status=403, error=str(error))
        await self._servers.signed_in(person, found.tokens.refresh_token)
        answer = self._again(_target(found.to))
        answer.raw_headers += [header, SIGNING_IN.header(b"", where)]
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Ends the session, here and everywhere."""
        signed_in, form = await self.who(request), await form_of(request)
        is_ours = is_same_origin(dict(request.scope["headers"]))
        if not is_ours or signed_in is None or form.get("csrf") != signed_in.csrf:
            return self._form(to=HOME, status=403, error=FOREIGN)
        await self._sessions.end(signed_in)
        return _redirected(SIGN_IN, SESSION.header(b"", self._reached(request)))

    async def _session(self, request: Request, tenant: str, credential: str) -> tuple[tuple[bytes, bytes], Principal]:
        """The header with the cookie of a new session, and whose it is. Raises Refused: REST does not accept the
        credential."""
        authorization = b"Bearer " + credential.encode()
        me = await self._me(request, tenant, authorization)
        until = None if me["expires_at"] is None else datetime.fromisoformat(me["expires_at"])
        cookie = await self._sessions.begin(tenant or me["tenant"], authorization, until)
        return SESSION.header(cookie, self._reached(request)), person_of(me)

    async def _me(self, request: Request, tenant: str, authorization: bytes) -> Any:
        nobody = SignedIn(tenant, authorization, "", b"", _NEVER)
        return await self._rest.get(request.scope, nobody, f"/tenants/{tenant}/me" if tenant else "/me")

    def _spend(self, request: Request) -> None:
        """Raises RateLimited."""
        self._attempts.spend(limited_address(client_address(request.scope)))

    def _form(
        self, *, to: str, status: int = 200, error: str = "", tenant: str = "", issuers: Sequence[Issuer] = ()
    ) -> HTMLResponse:
        values = {"to": to, "error": error, "tenant": tenant, "issuers": issuers}
        answer = self._templates.response("sign_in.html", values, status)
        answer.headers.update(_headers(to))
        return answer


def person_of(me: Mapping[str, Any]) -> Principal:
    """Whom REST has told of."""
    who = me["tenant"], me["issuer"], me["subject"]
    return Principal(*who, frozenset(me["scopes"]), groups=frozenset(me["groups"]))


def _headers(to: str) -> Mapping[str, str]:
    """Those of pages on the way to this one."""
    return HEADERS if to.startswith(HOME) else _FOR_PROGRAMS


def _redirected(to: str, header: tuple[bytes, bytes]) -> Response:
    answer = RedirectResponse(to, 303, headers=_FOR_PROGRAMS)
    answer.raw_headers.append(header)
    return answer


def _here(request: Request) -> str:
    path, query = quote(request.scope["path"], safe="/:"), request.scope["query_string"].decode("latin-1")
    if not path.startswith(HOME):  # a program's own spelling: ours has no character that pages do not have
        query = urlencode(request.query_params.multi_items())
    return path + (f"?{query}" if query else "")


def _target(to: str | None) -> str:
    """Where to go afterwards: a page of the console, whatever was asked for."""
    if to is None or not _is_page(to) or ".." in to or to.startswith((SIGN_IN, HOME + "/-")):
        return HOME
    return to


async def form_of(request: Request) -> dict[str, str]:
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
