"""The schema of this version. `migrations/` migrates databases to it; a test compares the two."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, get_args, get_origin

import sqlalchemy as sa
from msgspec import Meta

from app.domain import ApiKey, BackendSpec, Connection, Issuer, Person, Tenant
from app.domain.resources.clients import CLIENTS
from app.domain.resources.fields import MAX_REASON, NAME_LENGTH
from app.domain.resources.guides import GUIDES
from app.domain.resources.members import DeclaredMember, bare, declared_members, without_none
from app.domain.resources.recipes import RECIPES
from app.domain.resources.resource import Resource
from app.domain.resources.toolsets import TOOLSETS

WORD_LENGTH = 16
TEXT_LENGTH = 255  # a longer text has no length in the database

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A moment. Stored and read as UTC, because SQLite keeps no time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        return value if value is None else value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _tenant(*, primary_key: bool = False, index: bool = False) -> sa.Column[str]:
    """The tenant that a row belongs to, and with which it is deleted."""
    owner = sa.ForeignKey("tenants.name", ondelete="CASCADE")
    return sa.Column("tenant", sa.String(NAME_LENGTH), owner, primary_key=primary_key, nullable=False, index=index)


def _made() -> sa.Column[datetime]:
    return sa.Column("created_at", UtcDateTime, nullable=False)


def columns_of(declared: Iterable[DeclaredMember], *without: str) -> list[sa.Column[Any]]:
    """A column for each stored member, which holds JSON where it is not a plain value."""
    members = [each for each in declared if each.is_stored and each.name not in {"tenant", *without}]
    key = "id" if any(each.name == "id" for each in members) else "name"
    return [_column(each, is_key=each.name == key) for each in members]


def declared(resource: Resource[Any]) -> sa.Table:
    """The table of a resource."""
    columns = columns_of(resource.members)
    if not resource.goes_with:
        return sa.Table(resource.name, metadata, _tenant(primary_key=True), *columns)
    own, owners = ["tenant", resource.goes_with], f"{resource.goes_with}s"
    owner = sa.ForeignKeyConstraint(own, [f"{owners}.tenant", f"{owners}.name"], ondelete="CASCADE")
    tenant = sa.Column("tenant", sa.String(NAME_LENGTH), primary_key=True)
    return sa.Table(resource.name, metadata, tenant, *columns, owner)


def _column(member: DeclaredMember, *, is_key: bool) -> sa.Column[Any]:
    value = without_none(bare(member.kind)[0])
    kind, marks = bare(member.kind if value is None else value)
    limits = next((each for each in marks if isinstance(each, Meta)), Meta())
    return sa.Column(member.name, _type_of(kind, limits), primary_key=is_key, nullable=value is not None)


def _type_of(kind: Any, limits: Meta) -> Any:
    length = (limits.extra or {}).get("stored")
    if get_origin(kind) is Literal and isinstance(get_args(kind)[0], str):
        return sa.String(length or WORD_LENGTH)
    if kind is bytes:
        return sa.LargeBinary(length)
    if kind is not str:
        return _PLAIN.get(kind, sa.JSON(none_as_null=True))
    length = length or limits.max_length or TEXT_LENGTH + 1
    return sa.String(length) if "stored" in (limits.extra or {}) or length <= TEXT_LENGTH else sa.Text


_PLAIN: dict[Any, Any] = {bool: sa.Boolean, int: sa.Integer, float: sa.Double, datetime: UtcDateTime}

tenants = sa.Table("tenants", metadata, *columns_of(declared_members(Tenant)), _made())

backends = sa.Table(
    "backends",
    metadata,
    _tenant(primary_key=True),
    *columns_of(declared_members(BackendSpec), "warm"),
    sa.Column("warm", sa.Integer, nullable=False),
    sa.Column("warm_auto", sa.Boolean, nullable=False),  # instead of a number
    sa.Column("api", sa.LargeBinary),  # what was made of its `openapi`: read only for its sessions
    # The secrets of its definition, which the other columns do not have; null: not looked for yet.
    sa.Column("sealed", sa.LargeBinary),
    _made(),
    sa.Column("changed_at", UtcDateTime),  # null: not since there is this column
)

# Their names and those of backends are one space: `storage._specs` keeps it.
toolsets = sa.Table(
    "toolsets",
    metadata,
    _tenant(primary_key=True),
    *columns_of(TOOLSETS.members),
    _made(),
    sa.Column("changed_at", UtcDateTime),  # null: not since there is this column
)

# From which packages of npm and PyPI are installed. `backends.package` names them by their hash.
packages = sa.Table(
    "packages",
    metadata,
    _tenant(primary_key=True),
    sa.Column("lock", sa.String(64), primary_key=True),
    sa.Column("registry", sa.String(WORD_LENGTH), nullable=False),
    sa.Column("name", sa.String(TEXT_LENGTH), nullable=False),
    sa.Column("version", sa.String(TEXT_LENGTH), nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    _made(),
)

guides, recipes, clients = declared(GUIDES), declared(RECIPES), declared(CLIENTS)

# What backends offer. A row goes with its backend.
catalog = sa.Table(
    "catalog",
    metadata,
    sa.Column("tenant", sa.String(NAME_LENGTH), primary_key=True),
    sa.Column("backend", sa.String(NAME_LENGTH), primary_key=True),
    sa.Column("definition", sa.String(64), nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("offer", sa.LargeBinary, nullable=False),
    sa.Column("pins", sa.JSON, nullable=False),
    sa.Column("looked_at", UtcDateTime, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "backend"], ["backends.tenant", "backends.name"], ondelete="CASCADE"),
)

# What a person has approved of a tool, and rejected. Rows go with their backend.
approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("tenant", sa.String(NAME_LENGTH), primary_key=True),
    sa.Column("backend", sa.String(NAME_LENGTH), primary_key=True),
    sa.Column("tool", sa.String(256), primary_key=True),
    sa.Column("approved", sa.LargeBinary),
    sa.Column("rejected", sa.String(64)),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "backend"], ["backends.tenant", "backends.name"], ondelete="CASCADE"),
)

api_keys = sa.Table("api_keys", metadata, _tenant(index=True), *columns_of(declared_members(ApiKey)))

# Principals come from issuers; only those that are switched off are stored.
principals_off = sa.Table(
    "principals_off",
    metadata,
    _tenant(primary_key=True),
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("issuer", sa.String(512), nullable=False),
    sa.Column("subject", sa.String(255), nullable=False),
    sa.Column("reason", sa.String(MAX_REASON), nullable=False),
    sa.Column("off_by_platform", sa.Boolean, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
)

issuers = sa.Table(
    "issuers",
    metadata,
    _tenant(),
    *columns_of(declared_members(Issuer)),
    # Set: an issuer of the platform, for the tenants below instead of its own.
    sa.Column("tenants_claim", sa.String(256)),
    sa.UniqueConstraint("tenant", "issuer"),
)

# The tenants of an issuer of the platform. Rows go with their tenant: a new one of its name must not inherit them.
issuer_tenants = sa.Table(
    "issuer_tenants",
    metadata,
    sa.Column("issuer_id", sa.String(16), sa.ForeignKey("issuers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("value", sa.String(256), primary_key=True),
    _tenant(index=True),
    sa.Column("scopes", sa.JSON, nullable=False),
)

# What people have allowed clients, which need no row of their own: those with a metadata document have none.
connections = sa.Table(
    "connections",
    metadata,
    _tenant(),
    *columns_of(declared_members(Connection)),
    sa.Index("ix_connections_person", "tenant", "issuer", "subject"),
    sa.Index("ix_connections_client", "tenant", "client_id"),
    sa.Index("ix_connections_ends_at", "ends_at"),
)

# People with a connection, whose provider can be asked about them; and whoever has signed in lately.
people = sa.Table(
    "people",
    metadata,
    _tenant(),
    *columns_of(declared_members(Person)),
    sa.PrimaryKeyConstraint("tenant", "issuer", "subject"),
)

# How often callers have used what an entry of an `access` lists, by names of `limits.caller_limits`, until `ends_at`.
call_counts = sa.Table(
    "call_counts",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("ends_at", sa.BigInteger, nullable=False),  # Unix time
    sa.Index("ix_call_counts_ends_at", "ends_at"),
)

# No foreign key to tenants: the trail of a tenant outlives it.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("tenant", sa.String(NAME_LENGTH), nullable=False),
    sa.Column("actor_tenant", sa.String(NAME_LENGTH), nullable=False),
    sa.Column("actor_issuer", sa.Text, nullable=False),
    sa.Column("actor_subject", sa.Text, nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("target", sa.String(255), nullable=False),
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("changes", sa.JSON(none_as_null=True)),
    sa.Index("ix_audit_tenant_id", "tenant", "id"),
    sa.Index("ix_audit_at", "at"),
    sa.Index("ix_audit_request_id", "request_id"),
    sa.Index("ix_audit_action_id", "action", "id"),
    sa.Index("ix_audit_target_id", "target", "id"),
    sa.Index("ix_audit_actor_subject_id", "actor_subject", "id"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("digest", sa.LargeBinary(32), primary_key=True),
    _tenant(index=True),
    sa.Column("caller", sa.LargeBinary(32), nullable=False, index=True),
    sa.Column("body", sa.LargeBinary(32), nullable=False),
    sa.Column("answer", sa.LargeBinary),
    sa.Column("created_at", UtcDateTime, nullable=False, index=True),
)

console_sessions = sa.Table(
    "console_sessions",
    metadata,
    sa.Column("digest", sa.LargeBinary(32), primary_key=True),
    sa.Column("caller", sa.LargeBinary(32), nullable=False, index=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("ends_at", UtcDateTime, nullable=False, index=True),
)

calls = sa.Table(
    "calls",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _tenant(),
    sa.Column("at_us", sa.BigInteger, nullable=False, index=True),
    sa.Column("backend", sa.String(NAME_LENGTH), nullable=False),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("bucket", sa.SmallInteger, nullable=False),
    sa.Column("bytes_in", sa.BigInteger, nullable=False),
    sa.Column("bytes_out", sa.BigInteger, nullable=False),
    sa.Column("principal_tenant", sa.String(NAME_LENGTH), nullable=False),
    sa.Column("issuer", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("client_name", sa.Text, nullable=False),
    sa.Column("client_version", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.Index("ix_calls_tenant_at_us", "tenant", "at_us"),
)

secret_key_check = sa.Table(
    "secret_key_check",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("value", sa.LargeBinary(48), nullable=False),
    sa.Column("made_at", UtcDateTime, nullable=False),
)
