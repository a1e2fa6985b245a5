"""The schema as this version sees it. `migrations/` brings a database there; a test compares the two."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    true,
)  # fmt: skip

NAME_LENGTH = 63
REASON_LENGTH = 300

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment. SQLite keeps no time zone, so it goes in as UTC and comes out as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Toward the database."""
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """From the database."""
        return value if value is None else value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


tenants = Table(
    "tenants",
    metadata,
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("limits", JSON, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=true()),
    Column("reason", String(REASON_LENGTH), nullable=False, server_default=""),
    Column("version", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

backends = Table(
    "backends",
    metadata,
    Column("tenant", String(NAME_LENGTH), ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=True),
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("command", Text, nullable=False),
    Column("args", JSON, nullable=False),
    Column("env", JSON, nullable=False),
    Column("cwd", Text),
    Column("isolation", String(16), nullable=False),
    Column("recovery", String(16), nullable=False),
    Column("broadcast", Boolean, nullable=False, server_default=false()),
    Column("warm", Integer, nullable=False),
    Column("max_processes", Integer, nullable=False),
    Column("calls_per_session", Integer, nullable=False, server_default="128"),
    Column("timeouts", JSON, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("reason", String(REASON_LENGTH), nullable=False, server_default=""),
    Column("off_by_platform", Boolean, nullable=False, server_default=false()),
    Column("version", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(NAME_LENGTH), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", String(200), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("pepper_version", Integer, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    Column("enabled", Boolean, nullable=False, server_default=true()),
    Column("reason", String(REASON_LENGTH), nullable=False, server_default=""),
    Column("off_by_platform", Boolean, nullable=False, server_default=false()),
)

# Principals come from issuers and are not stored: only those are that were switched off.
principals_off = Table(
    "principals_off",
    metadata,
    Column("tenant", String(NAME_LENGTH), ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=True),
    Column("id", String(32), primary_key=True),
    Column("issuer", String(512), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("reason", String(REASON_LENGTH), nullable=False),
    Column("off_by_platform", Boolean, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

issuers = Table(
    "issuers",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(NAME_LENGTH), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False),
    Column("issuer", String(512), nullable=False),
    Column("algorithms", JSON, nullable=False),
    Column("audience", JSON, nullable=False),
    Column("claims", JSON, nullable=False),
    Column("max_scopes", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("sealed_secret", LargeBinary),
    Column("jwks_url", Text),
    Column("discovery_url", Text),
    Column("version", Integer, nullable=False),
    Column("tenants_claim", String(256)),  # set: it is the platform's, and opens the tenants below, not its own
    UniqueConstraint("tenant", "issuer"),
)

# Which tenants an issuer of the platform opens. Of a removed tenant nothing stays that another of its name would get.
issuer_tenants = Table(
    "issuer_tenants",
    metadata,
    Column("issuer_id", String(16), ForeignKey("issuers.id", ondelete="CASCADE"), primary_key=True),
    Column("value", String(256), primary_key=True),
    Column("tenant", String(NAME_LENGTH), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("scopes", JSON, nullable=False),
)

# Tenants are named here, not referred to: what was done to one outlives it.
audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", UtcDateTime, nullable=False),
    Column("tenant", String(NAME_LENGTH), nullable=False),
    Column("actor_tenant", String(NAME_LENGTH), nullable=False),
    Column("actor_issuer", Text, nullable=False),
    Column("actor_subject", Text, nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(255), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("changes", JSON(none_as_null=True)),
    Index("ix_audit_tenant_id", "tenant", "id"),
    Index("ix_audit_at", "at"),
    Index("ix_audit_request_id", "request_id"),
    Index("ix_audit_action_id", "action", "id"),
    Index("ix_audit_target_id", "target", "id"),
    Index("ix_audit_actor_subject_id", "actor_subject", "id"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("tenant", String(NAME_LENGTH), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("caller", LargeBinary(32), nullable=False, index=True),
    Column("body", LargeBinary(32), nullable=False),
    Column("answer", LargeBinary),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

secret_key_check = Table(
    "secret_key_check",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", LargeBinary(48), nullable=False),
    Column("made_at", UtcDateTime, nullable=False),
)
