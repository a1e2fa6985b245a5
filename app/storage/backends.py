"""Registered backends in the database. What is secret of a definition is sealed, and a mark stands in its place."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sqlalchemy import Row, select, update

from app.domain import BackendSpec, home_of
from app.errors import BackendNotFound, StorageReadOnly
from app.storage._rows import matching
from app.storage._specs import SpecRepository
from app.storage._tables import backends, tenants
from app.storage.audit import Act
from app.storage.engine import Database
from app.storage.tools.approvals import Judgement
from app.text.credentials import MARK, hidden, secrets_in


class Sealer(Protocol):
    """Encrypts a secret for one place; `auth.sealing.Sealer`."""

    def seal(self, secret: bytes, place: str) -> bytes: ...

    def open(self, sealed: bytes, place: str) -> bytes:
        """Raises ValueError: it was sealed with another key, or for another place."""
        ...


def _secrets_of(spec: BackendSpec) -> dict[str, Any]:
    """The members that have secrets."""
    found = {"env": dict(spec.env), "args": list(spec.args), "url": spec.url}
    is_secret = {"env": spec.env, "args": secrets_in(spec.args), "url": spec.url and secrets_in([spec.url])}
    return {name: value for name, value in found.items() if is_secret[name]}


class BackendRepository(SpecRepository):
    """The backends. Raises BackendNotFound where others raise NotFound. Without a `sealer` marks stand for the secrets
    that are read, and none can be written."""

    _unread = ("api",)

    def __init__(self, database: Database, sealer: Sealer | None) -> None:
        super().__init__(database, backends, "backend", BackendNotFound)
        self._sealer = sealer

    async def seal_all(self) -> None:
        """Seals the secrets of backends that were stored before this was done. Of a database that accepts no changes
        they are sealed later."""
        rows = await self._database.rows(self._select().where(backends.c.sealed.is_(None)))
        if not rows:
            return
        with contextlib.suppress(StorageReadOnly):
            async with self._database.write() as connection:
                for spec in map(self._value, rows):
                    values = self._values(self._sealed(spec))
                    row = matching(backends, tenant=spec.tenant, name=spec.name, version=spec.version)
                    change = {name: values[name] for name in ("env", "args", "url", "sealed")}
                    await connection.execute(update(backends).where(row).values(change))

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        """The enabled backends with warm processes, of all tenants or of this one."""
        query = self._select().where(
            backends.c.enabled, (backends.c.warm > 0) | backends.c.warm_auto, tenants.c.enabled
        )
        if tenant is not None:
            query = query.where(backends.c.tenant == tenant)
        return [self._value(row) for row in await self._database.rows(query)]

    async def homes(self, *, limit: int) -> Sequence[str]:
        """The names of up to `limit` homes of tenants that have backends."""
        query = select(tenants.c.name, tenants.c.created_at).where(tenants.c.name.in_(select(backends.c.tenant)))
        rows = await self._database.rows(query.order_by(tenants.c.name).limit(limit))
        return [home_of(row.name, row.created_at) for row in rows]

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        return replace(await super().create(tenant, spec, act=act), api=None)

    async def replace(
        self, tenant: str, value: BackendSpec, *, judgement: Judgement | None = None, act: Act | None = None
    ) -> BackendSpec:
        return replace(await super().replace(tenant, value, judgement=judgement, act=act), api=None)

    async def api(self, tenant: str, name: str) -> tuple[str, bytes] | None:
        """What was made of a backend's document, after its digest; None: there is no such backend, or it has none."""
        query = select(backends.c.openapi_made, backends.c.api).where(self._versioned.row(tenant, name))
        row = await self._database.row(query)
        return None if row is None or row.api is None else (row.openapi_made, row.api)

    def _values(self, spec: BackendSpec) -> dict[str, Any]:
        is_auto = spec.warm == "auto"
        made = {} if spec.api is None else {"api": spec.api}
        shown = {
            "env": dict.fromkeys(spec.env, MARK), "args": list(hidden(spec.args)),
            "url": None if spec.url is None else hidden([spec.url])[0], "sealed": spec.sealed,
        }  # fmt: skip
        return {**super()._values(spec), **shown, "warm": 0 if is_auto else spec.warm, "warm_auto": is_auto, **made}

    def _sealed(self, spec: BackendSpec) -> BackendSpec:
        """Sealed anew only where they are others: what a backend offers is known by this."""
        if spec.lacks_secrets:  # those that are stored do not open, and stay
            return spec
        secrets = _secrets_of(spec)
        if not secrets or self._opened(spec.tenant, spec.name, spec.sealed) == secrets:
            return spec if secrets else replace(spec, sealed=b"")
        if self._sealer is None:
            raise TypeError("a repository without a sealer stores no secrets")
        return replace(spec, sealed=self._sealer.seal(json.dumps(secrets).encode(), _place(spec.tenant, spec.name)))

    def _opened(self, tenant: str, name: str, sealed: bytes | None) -> dict[str, Any]:
        """The members that have secrets; none if they do not open."""
        if not sealed or self._sealer is None:
            return {}
        try:
            found: dict[str, Any] = json.loads(self._sealer.open(sealed, _place(tenant, name)))
        except ValueError:
            return {}
        return found

    def _own(self, row: Row[Any]) -> Mapping[str, Any]:
        secrets = self._opened(row.tenant, row.name, row.sealed)
        if "args" in secrets:
            secrets["args"] = tuple(secrets["args"])
        return {"warm": "auto" if row.warm_auto else row.warm, "sealed": row.sealed or b"", **secrets}


def _place(tenant: str, name: str) -> str:
    return f"backend {tenant}/{name} definition"
