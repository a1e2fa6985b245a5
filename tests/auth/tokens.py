"""Tokens as an issuer makes them and as an attacker does, and Tokens with hands on their clock, keys and rows."""

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from app.auth._refusal import CredentialRefused
from app.auth.sealing import Sealer
from app.auth.tokens import Target, place_of
from app.domain import Issuer, ServedTenants
from app.errors import StorageUnavailable
from tests.auth.test_jwks import RSA, Host

NOW = datetime(2026, 1, 1, tzinfo=UTC)


T = int(NOW.timestamp())


ISS = "https://idp.example.com"


BASE = "https://gw.example.com"


TARGET = Target("acme", "echo", BASE)


SECRET = "correct horse battery staple, all 32 bytes of it"


KEYS: dict[str, Any] = {
    "RS256": RSA, "PS384": RSA, "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()), "EdDSA": ed25519.Ed25519PrivateKey.generate(), "HS256": SECRET,
}  # fmt: skip


sealer = Sealer(b"s" * 32)


@dataclass(frozen=True)
class Record(Issuer):
    tenant: str = "acme"
    issuer: str = ISS
    algorithms: tuple[str, ...] = ("RS256",)
    sealed_secret: bytes | None = None
    jwks_url: str | None = "https://idp.example.com/jwks"
    discovery_url: str | None = None
    audience: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=dict)
    max_scopes: frozenset[str] = frozenset({"mcp:connect"})
    id: str = "issuer1"
    created_at: datetime = NOW
    tenants: ServedTenants | None = None


HS = Record(
    algorithms=("HS256",), jwks_url=None, sealed_secret=sealer.seal(SECRET.encode(), place_of("acme", ISS, "issuer1"))
)


@dataclass
class Rig:
    """Tokens of one issuer, with hands on its clock, its keys and its row."""

    host: Host = field(default_factory=Host)
    records: dict[tuple[str, str], Record] = field(default_factory=lambda: {("acme", ISS): Record()})
    tokens: Any = None
    lookups: int = 0
    is_down: bool = False
    elapsed_s: float = 0.0

    async def find(self, tenant: str, issuer: str) -> Record | None:
        self.lookups += 1
        if self.is_down:
            raise StorageUnavailable
        return self.records.get((tenant, issuer))

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.elapsed_s)

    def set(self, record: Record) -> None:
        self.records = {(record.tenant, record.issuer): record}

    async def refuse(self, token: str, target: Target = TARGET) -> str:
        with pytest.raises(CredentialRefused) as caught:
            await self.tokens.verify(token, target)
        return str(caught.value.facts["failure"])


def claims(**changes: Any) -> dict[str, Any]:
    """Good ones; a change to ... leaves the claim out."""
    good = {"iss": ISS, "sub": "alice", "aud": TARGET.resource, "iat": T, "exp": T + 600, "scope": "mcp:connect"}
    return {name: value for name, value in {**good, **changes}.items() if value is not ...}


def b64(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def raw_token(header: bytes | dict[str, Any], payload: bytes | dict[str, Any], algorithm: str = "RS256") -> str:
    """Signed by the right key, whatever the header says and the payload is."""
    signed = f"{b64(header)}.{b64(payload)}"
    maker = jwt.get_algorithm_by_name(algorithm)
    return f"{signed}.{b64(maker.sign(signed.encode(), maker.prepare_key(KEYS[algorithm])))}"


def token(algorithm: str = "RS256", header: dict[str, Any] | None = None, **changes: Any) -> str:
    named = {"alg": algorithm, "typ": "JWT", **({} if algorithm == "HS256" else {"kid": "a"}), **(header or {})}
    return raw_token(named, claims(**changes), algorithm)


def hmac_token(header: dict[str, Any], payload: dict[str, Any], secret: bytes, digest: str = "sha256") -> str:
    signed = f"{b64(header)}.{b64(payload)}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), digest))}"
