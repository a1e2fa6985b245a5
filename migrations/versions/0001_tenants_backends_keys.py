"""Tenants, backends, API keys; and the tenant `default`.

Revision 0001, the first. Runs on SQLite and PostgreSQL.
"""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    tenants = op.create_table(
        "tenants",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    op.create_table(
        "backends",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("env", sa.JSON(), nullable=False),
        sa.Column("isolation", sa.String(16), nullable=False),
        sa.Column("recovery", sa.String(16), nullable=False),
        sa.Column("warm", sa.Integer(), nullable=False),
        sa.Column("max_processes", sa.Integer(), nullable=False),
        sa.Column("timeouts", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_backends_tenant_tenants", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_backends"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("pepper_version", sa.Integer(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_api_keys_tenant_tenants", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])
    # No limits of its own: it has the defaults of the version that reads it.
    op.bulk_insert(tenants, [{"name": "default", "limits": {}, "version": 1, "created_at": datetime.now(UTC)}])


def downgrade() -> None:
    """Back."""
    op.drop_table("api_keys")
    op.drop_table("backends")
    op.drop_table("tenants")
