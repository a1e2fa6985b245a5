"""Tenants, keys and principals that are switched off, and why backends are.

Revision 0010, after tenants of an issuer. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    for table in ("tenants", "api_keys"):
        op.add_column(table, sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.true()))
    for table in ("tenants", "backends", "api_keys"):
        op.add_column(table, sa.Column("reason", sa.String(300), nullable=False, server_default=""))
    for table in ("backends", "api_keys"):
        op.add_column(table, sa.Column("off_by_platform", sa.Boolean(), nullable=False, server_default=sa.false()))
    # Until now nobody else could switch a backend off.
    backends = sa.table("backends", sa.column("enabled", sa.Boolean()), sa.column("off_by_platform", sa.Boolean()))
    op.execute(backends.update().where(sa.not_(backends.c.enabled)).values(off_by_platform=True))
    op.create_table(
        "principals_off",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(300), nullable=False),
        sa.Column("off_by_platform", sa.Boolean(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant"], ["tenants.name"], name="fk_principals_off_tenant_tenants", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_principals_off"),
    )


def downgrade() -> None:
    """Back. What was switched off is on again, backends excepted."""
    op.drop_table("principals_off")
    for table in ("backends", "api_keys"):
        op.drop_column(table, "off_by_platform")
    for table in ("tenants", "backends", "api_keys"):
        op.drop_column(table, "reason")
    for table in ("tenants", "api_keys"):
        op.drop_column(table, "enabled")
