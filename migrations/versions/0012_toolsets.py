"""Toolsets, which of a backend's tools are shown, the catalogue of what backends offer, and what of it is approved.

Revision 0012, after sandboxes. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("backends", sa.Column("selection", sa.JSON(), nullable=False, server_default="{}"))
    for name, value in (("pin", "off"), ("pin_minor", "accept")):
        op.add_column("backends", sa.Column(name, sa.String(8), nullable=False, server_default=value))
    tenant = sa.ForeignKey("tenants.name", ondelete="CASCADE", name="fk_toolsets_tenant_tenants")
    op.create_table(
        "toolsets",
        sa.Column("tenant", sa.String(63), tenant, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("instructions", sa.Text(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("always", sa.JSON(), nullable=False),
        sa.Column("learns", sa.Boolean(), nullable=False),
        sa.Column("timeouts", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(300), nullable=False),
        sa.Column("off_by_platform", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_toolsets"),
    )
    op.create_table(
        "catalog",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("backend", sa.String(63), nullable=False),
        sa.Column("definition", sa.String(64), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("offer", sa.LargeBinary(), nullable=False),
        sa.Column("pins", sa.JSON(), nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "backend", name="pk_catalog"),
        sa.ForeignKeyConstraint(
            ["tenant", "backend"],
            ["backends.tenant", "backends.name"],
            ondelete="CASCADE",
            name="fk_catalog_tenant_backend_backends",
        ),
    )

    op.create_table(
        "approvals",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("backend", sa.String(63), nullable=False),
        sa.Column("tool", sa.String(256), nullable=False),
        sa.Column("approved", sa.LargeBinary()),
        sa.Column("rejected", sa.String(64)),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "backend", "tool", name="pk_approvals"),
        sa.ForeignKeyConstraint(
            ["tenant", "backend"],
            ["backends.tenant", "backends.name"],
            ondelete="CASCADE",
            name="fk_approvals_tenant_backend_backends",
        ),
    )


def downgrade() -> None:
    """Back. What was pinned is no longer withheld."""
    op.drop_table("approvals")
    op.drop_table("catalog")
    op.drop_table("toolsets")
    for name in ("pin_minor", "pin", "selection"):
        op.drop_column("backends", name)
