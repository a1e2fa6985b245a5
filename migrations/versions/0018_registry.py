"""Registries of tenants, and when backends and toolsets were changed last.

Revision 0018, after signing in to the console. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Nobody reads the registry of a tenant that is there already."""
    op.add_column("tenants", sa.Column("registry", sa.String(16), nullable=False, server_default="off"))
    for table in ("backends", "toolsets"):
        op.add_column(table, sa.Column("changed_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    """Back. There are no registries."""
    for table in ("toolsets", "backends"):
        op.drop_column(table, "changed_at")
    op.drop_column("tenants", "registry")
