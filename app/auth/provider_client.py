"""ProviderClient: the gateway as a client of an identity provider (OpenID Connect, authorization code with PKCE)."""

import base64
import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlencode

from app.auth.authenticator import MAX_CREDENTIAL_BYTES
from app.auth.issuer_rules import is_key
from app.auth.jwks import discovered, named_url
from app.auth.outbound import Outbound
from app.auth.outbound_urls import FetchRefused, parse_url
from app.auth.sealing import SealBroken, Sealer
from app.auth.tokens import source_of
from app.domain import Issuer, SignInClient

MAX_REFRESH_TOKEN = 8192
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class ProviderRefused(Exception):
    """The provider gives no token, or none that can be used: why, in words for people. `is_final`: what we have of the
    person is not valid any more (`invalid_grant`); anything else may be about ourselves, like a secret that is over."""

    def __init__(self, words: str, *, is_final: bool = False) -> None:
        super().__init__(words)
        self.is_final = is_final


class ProviderTokens(NamedTuple):
    """What a provider gives: the credential of the person, and with what to ask for the next one."""

    token: str
    refresh_token: str | None


class ProviderClient:
    """Asks providers. Whatever it fetches goes through the guard of `Outbound`."""

    def __init__(self, outbound: Outbound, sealer: Sealer, now: Callable[[], float] = time.time) -> None:
        self._outbound, self._sealer, self._now = outbound, sealer, now

    async def address(self, issuer: Issuer, client: SignInClient, *, verifier: str, **asked: str) -> str:
        """Where a browser goes to sign in; `asked` are `redirect_uri` and `state`. Raises FetchFailed."""
        challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        authorize = _endpoint(await self._metadata(issuer), "authorization_endpoint")
        query = {
            **client.parameters,
            "response_type": "code",
            "client_id": client.client_id,
            "scope": client.scope,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **asked,
        }
        return authorize + ("&" if "?" in authorize else "?") + urlencode(query)

    async def redeemed(
        self, issuer: Issuer, client: SignInClient, *, code: str, verifier: str, redirect_uri: str
    ) -> ProviderTokens:
        """The tokens for a code.

        Raises:
            FetchFailed: the provider cannot be reached.
            ProviderRefused: it gives none.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        return await self._tokens(issuer, client, form)

    async def refreshed(self, issuer: Issuer, client: SignInClient, refresh_token: str) -> ProviderTokens:
        """The tokens for a refresh token. Raises as `redeemed`."""
        return await self._tokens(issuer, client, {"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def _tokens(self, issuer: Issuer, client: SignInClient, form: Mapping[str, str]) -> ProviderTokens:
        metadata = await self._metadata(issuer)
        url = _endpoint(metadata, "token_endpoint")
        own = self._proof(issuer, client, metadata, url)
        try:
            answer: Any = json.loads(await self._outbound.post(url, {**form, "client_id": client.client_id, **own}))
        except FetchRefused as refusal:
            raise _refused(refusal) from None
        except (ValueError, RecursionError):
            answer = None
        found = answer if isinstance(answer, dict) else {}
        token, refresh_token = found.get(client.token), found.get("refresh_token")
        if not isinstance(token, str) or not token.isascii() or not 0 < len(token) < MAX_CREDENTIAL_BYTES:
            raise ProviderRefused(f"it has sent no {client.token.replace('_', ' ')} that can be used")
        is_kept = (
            isinstance(refresh_token, str) and refresh_token.isascii() and 0 < len(refresh_token) <= MAX_REFRESH_TOKEN
        )
        return ProviderTokens(token, refresh_token if is_kept else None)

    def _proof(self, issuer: Issuer, client: SignInClient, metadata: Mapping[str, Any], url: str) -> dict[str, str]:
        """What says, beside its id, that it is this client: nothing, its secret, or what its key has signed. Raises
        ProviderRefused: we have none that can be used."""
        secret = self._secret(issuer)
        if secret is None:
            return {}
        if not is_key(secret):
            return {"client_secret": secret}
        from app.auth.client_keys import ClientKey, KeyUnusable  # noqa: PLC0415 - 12 MB, where there is such a key

        listed = metadata.get("token_endpoint_auth_signing_alg_values_supported")
        try:
            # For the address that gets it: then it is good nowhere else, whatever address the metadata names. All of
            # Entra ID, Okta and Keycloak take it; OpenID Connect Core 9: "should be the URL of the token endpoint".
            assertion = ClientKey.read(secret).assertion(client.client_id, url, listed, self._now())
        except KeyUnusable as problem:
            raise ProviderRefused(f"our key for it cannot be used: {problem}") from None
        return {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}

    def _secret(self, issuer: Issuer) -> str | None:
        """Raises ProviderRefused: it cannot be decrypted."""
        if issuer.sealed_client_secret is None:
            return None
        try:
            return self._sealer.open(issuer.sealed_client_secret, client_secret_place(issuer)).decode()
        except SealBroken:
            raise ProviderRefused("our secret for it cannot be decrypted with this SECRET_KEY: set it again") from None

    async def _metadata(self, issuer: Issuer) -> Mapping[str, Any]:
        """The provider's discovery document. Raises FetchFailed."""
        return await discovered(source_of(issuer), self._outbound.get)


def _endpoint(metadata: Mapping[str, Any], name: str) -> str:
    """A URL of a discovery document. Raises FetchFailed."""
    url = named_url(metadata, name)
    parse_url(url)  # a browser and this gateway read it alike
    return url


def client_secret_place(issuer: Issuer) -> str:
    """The place that the secret is sealed for."""
    return f"client secret|{issuer.tenant}|{issuer.id}"


def _refused(refusal: FetchRefused) -> ProviderRefused:
    """What the provider says (RFC 6749, 5.2); its words go into the audit trail, which takes no control characters."""
    try:
        answer = json.loads(refusal.body)
    except (ValueError, RecursionError):
        answer = None
    said = answer if isinstance(answer, dict) else {}
    words = "".join(each if each.isprintable() else " " for each in str(said.get("error_description") or "")[:300])
    error = "".join(each for each in str(said.get("error") or "")[:100] if each.isprintable())
    return ProviderRefused(words.strip() or error or str(refusal), is_final=error == "invalid_grant")
