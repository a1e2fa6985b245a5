"""Consent: the authorization endpoint of a tenant, where a browser asks whether a program may act for its person.

The person signs in to the console first. What the program asks for is in the address, and is checked anew each time:
when the page is made, and when its form comes back, with the token of this person's console session.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.auth.authorization.addresses import Addresses
from app.auth.authorization.server import AuthorizationServers, NotAsked
from app.console.passage import is_same_origin
from app.console.rest import Refused, Rest
from app.console.sessions import SignedIn
from app.console.signing import FOREIGN, Signing, form_of, person_of
from app.console.visit import HEADERS, Templates
from app.domain import Principal, is_name
from app.domain.resources.clients import parsed_redirect
from app.errors import NotFound
from app.http.client_address import client_address, limited_address
from app.http.dependencies import BASE_URL
from app.limits.caller_rates import RateLimiter

if TYPE_CHECKING:
    from app.auth.authorization.decisions import Ask

PATH = "/oauth/{tenant}/authorize"
MAX_QUERY = 8000


@dataclass(frozen=True)
class Consent:
    """`asked`: limits authorization requests by address."""

    servers: AuthorizationServers
    signing: Signing
    rest: Rest
    templates: Templates
    asked: RateLimiter

    async def show(self, request: Request) -> Response:
        """Asks the person; or, where the program was allowed this before, sends the browser back to it."""
        ask = await self._ask(request)
        if isinstance(ask, Response):
            return ask
        signed_in, person = await self._person(request, ask.to.tenant)
        if signed_in is None or person is None:
            return self.signing.sign_in_first(request, ask.to.tenant)
        if self.servers.may_use(ask, person) and await self.servers.was_allowed(ask, person):
            return self._gone(await self.servers.allow(ask, person))
        return self._page(ask, signed_in, person)

    async def answered(self, request: Request) -> Response:
        """Takes what the person has said."""
        ask = await self._ask(request)
        if isinstance(ask, Response):
            return ask
        signed_in, person = await self._person(request, ask.to.tenant)
        form = await form_of(request)
        if signed_in is None or person is None:
            return self.signing.sign_in_first(request, ask.to.tenant)
        is_ours = is_same_origin(dict(request.scope["headers"])) and form.get("csrf") == signed_in.csrf
        if not is_ours:
            return self._wrong(FOREIGN, 403)
        if form.get("decision") != "allow":
            return self._gone(await self.servers.refuse(ask, person))
        if not self.servers.may_use(ask, person):
            return self._page(ask, signed_in, person)
        return self._gone(await self.servers.allow(ask, person))

    async def _ask(self, request: Request) -> "Ask | Response":
        """What is asked for, or why nobody is asked."""
        self.asked.spend(limited_address(client_address(request.scope)))
        tenant, query = request.path_params["tenant"], request.scope["query_string"].decode("latin-1")
        fields: dict[str, Sequence[str]] = {}
        if is_name(tenant) and len(query) <= MAX_QUERY:
            fields.update(parse_qs(query, keep_blank_values=True))
        try:
            if not is_name(tenant):
                raise NotFound
            return await self.servers.asked(Addresses(request.scope[BASE_URL], tenant), fields)
        except NotFound:
            return self._wrong("There is nothing at this address.", 404)
        except NotAsked as error:
            return self._wrong(str(error), 400) if error.location is None else self._gone(error.location)

    async def _person(self, request: Request, tenant: str) -> tuple[SignedIn | None, Principal | None]:
        """Who is signed in, to this tenant."""
        signed_in = await self.signing.who(request)
        if signed_in is None or signed_in.tenant != tenant:
            return None, None
        try:
            me = await self.rest.me(request.scope, signed_in)
        except Refused as refused:
            if refused.status in (401, 403, 404):  # the key was revoked
                return None, None
            raise
        person = person_of(me)
        return (signed_in, person) if person.tenant == tenant else (None, None)

    def _page(self, ask: "Ask", signed_in: SignedIn, person: Principal) -> Response:
        parts = parsed_redirect(ask.redirect_uri)
        values = {
            "ask": ask,
            "person": person,
            "csrf": signed_in.csrf,
            "goes_to": parts.netloc if parts.scheme in ("http", "https") else f"{parts.scheme}:",
            "may_use": sorted(self.servers.may_use(ask, person)),
        }
        page = self.templates.response("consent.html", values, 200 if values["may_use"] else 403)
        # A browser follows the answer to a form only where this says so; nobody else frames or opens the page.
        has_name = parts.scheme in ("http", "https") and "[" not in parts.netloc  # browsers know no source with IPv6
        there = f"{parts.scheme}://{parts.netloc}" if has_name else f"{parts.scheme}:"
        page.headers["Content-Security-Policy"] = HEADERS["Content-Security-Policy"].replace(
            "form-action 'self'", f"form-action 'self' {there}"
        )
        page.headers["Cross-Origin-Opener-Policy"] = "unsafe-none"  # a program may have opened this as its window
        return page

    def _wrong(self, words: str, status: int) -> Response:
        return self.templates.response("failed.html", {"words": words}, status)

    @staticmethod
    def _gone(location: str) -> Response:
        """303: the browser does not repeat a form (RFC 9700, 4.12)."""
        answer = RedirectResponse(location, 303, headers={**HEADERS, "Cross-Origin-Opener-Policy": "unsafe-none"})
        answer.headers["location"] = location  # as it is: it was compared character for character
        return answer
