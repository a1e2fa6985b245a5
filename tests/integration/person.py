"""A person in front of a browser whom a program sends to sign in, and programs that do so."""

import base64
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from tests.console.browser import Browser

HERE = "http://127.0.0.1:33418/callback"  # nobody listens: the test reads where a browser would go


class Person:
    """Signs in with a key when asked, and allows what a program asks for, or refuses it."""

    def __init__(self, browser: Browser, key: str, *, allows: bool = True) -> None:
        self.browser, self.key, self.allows = browser, key, allows
        self.pages: list[str] = []

    def sent_to(self, url: str) -> str:
        """Goes where a program sends the browser; returns where it is sent back."""
        answer = self.browser.http.get(url)
        for _ in range(6):
            if answer.status_code == 303:
                location = answer.headers["location"]
                if not location.startswith("/"):
                    return str(location)
                answer = (
                    self._signed_in(location) if "/console/sign-in" in location else self.browser.http.get(location)
                )
            else:
                answer = self._decided(answer, url)
        raise AssertionError(f"{answer.status_code}: {answer.text[:500]}")

    def _signed_in(self, form: str) -> httpx2.Response:
        to = parse_qs(urlsplit(form).query)["to"][0]
        assert self.browser.http.get(form).status_code == 200
        return self.browser.sign_in(self.key, to)

    def _decided(self, page: httpx2.Response, url: str) -> httpx2.Response:
        self.pages.append(page.text)
        csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
        assert csrf is not None, f"{page.status_code}: {page.text[:2000]}"
        said = {"csrf": csrf[1], "decision": "allow" if self.allows else "refuse"}
        return self.browser.http.post(str(page.url), data=said, headers=self.browser.from_here)


@dataclass
class Kept(TokenStorage):
    """What the official SDK keeps between two starts of a program."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def sdk_client(address: str, person: Person, kept: Kept, **more: Any) -> OAuthClientProvider:
    """The OAuth client of the official Python SDK, which knows the address alone."""
    back = ""

    async def go(url: str) -> None:
        nonlocal back
        back = person.sent_to(url)

    async def come_back() -> AuthorizationCodeResult:
        found = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))

    metadata = OAuthClientMetadata(redirect_uris=[HERE], client_name="A test", token_endpoint_auth_method="none")
    return OAuthClientProvider(address, metadata, kept, go, come_back, **more)


@dataclass
class Program:
    """A program that speaks OAuth by hand, so that a test can leave out or change any of it. `issuer` is that of the
    tenant's authorization server."""

    http: httpx2.Client
    issuer: str
    resource: str
    client_id: str = ""
    redirect_uri: str = HERE
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    state: str = field(default_factory=lambda: secrets.token_urlsafe(12))

    def register(self, **metadata: Any) -> httpx2.Response:
        body = {"redirect_uris": [self.redirect_uri], "client_name": "By hand", **metadata}
        answer = self.http.post(self.issuer + "/register", json=body)
        if answer.status_code == 201:
            self.client_id = answer.json()["client_id"]
        return answer

    def address(self, **changed: str | None) -> str:
        """The authorization request, with these parameters changed or left out."""
        challenge = base64.urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "scope": "mcp:connect",
            "resource": self.resource,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **changed,
        }
        return self.issuer + "/authorize?" + urlencode({name: each for name, each in query.items() if each is not None})

    def answer(self, person: Person, **changed: str | None) -> dict[str, str]:
        """What the person comes back with."""
        back = person.sent_to(self.address(**changed))
        assert back.startswith(self.redirect_uri), back
        return {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}

    def redeem(self, code: str, **changed: str | None) -> httpx2.Response:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "client_id": self.client_id,
            "code_verifier": self.verifier,
            "resource": self.resource,
            **changed,
        }
        return self.token(form)

    def refresh(self, refresh_token: str, **changed: str | None) -> httpx2.Response:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": self.client_id, **changed}
        return self.token(form)

    def token(self, form: Mapping[str, str | None], **headers: str) -> httpx2.Response:
        given = {name: each for name, each in form.items() if each is not None}
        return self.http.post(self.issuer + "/token", data=given, headers=headers)

    def connected(self, person: Person) -> dict[str, Any]:
        """The tokens of a whole round."""
        if not self.client_id:
            assert self.register().status_code == 201
        answer = self.redeem(self.answer(person)["code"])
        assert answer.status_code == 200, answer.text
        tokens: dict[str, Any] = answer.json()
        return tokens
