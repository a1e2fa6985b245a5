"""Guides, and which of them a toolset shows.

Revision 0013, after toolsets. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("toolsets", sa.Column("guides", sa.JSON(), nullable=False, server_default="[]"))
    tenant = sa.ForeignKey("tenants.name", ondelete="CASCADE", name="fk_guides_tenant_tenants")
    op.create_table(
        "guides",
        sa.Column("tenant", sa.String(63), tenant, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_guides"),
    )


def downgrade() -> None:
    """Back. Guides are lost."""
    op.drop_table("guides")
    op.drop_column("toolsets", "guides")
