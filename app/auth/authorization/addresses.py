"""The addresses of a tenant's authorization server, and of what its tokens are for; and what it can do. Pure."""

import re
from typing import NamedTuple

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
GRANTS = ("authorization_code", "refresh_token", "client_credentials", JWT_BEARER)
METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")  # of clients to say who they are

_SEGMENT = r"[a-z0-9][a-z0-9-]{0,62}"
_path = re.compile(rf"/t/({_SEGMENT})(?:/({_SEGMENT})(?:/(?:mcp|sse|messages))?)?/?").fullmatch


class Addresses(NamedTuple):
    """Of one tenant, under the URL by which the client reaches the gateway (without a slash at the end)."""

    base_url: str
    tenant: str

    @property
    def issuer(self) -> str:
        """The `iss` of its tokens and answers (RFC 8414, RFC 9207)."""
        return f"{self.base_url}/oauth/{self.tenant}"

    def endpoint(self, name: str) -> str:
        """One of `authorize`, `token`, `register`, `revoke`, `jwks`."""
        return f"{self.issuer}/{name}"

    def audience(self, backend: str) -> str:
        """The `aud` of a token for this endpoint, or for all of the tenant where `backend` is empty."""
        whole = f"{self.base_url}/t/{self.tenant}"
        return f"{whole}/{backend}/mcp" if backend else whole

    def backend_of(self, resource: str) -> str | None:
        """The backend that a `resource` (RFC 8707) names in any of its spellings, "" for all of the tenant; None if it
        is none of this tenant's."""
        match = _path(resource.removeprefix(self.base_url)) if resource.startswith(self.base_url + "/") else None
        return (match[2] or "") if match is not None and match[1] == self.tenant else None
