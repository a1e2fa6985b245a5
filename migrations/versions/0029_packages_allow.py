"""Packages and images that administrators of a tenant register themselves.

Revision 0029, after packages. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. None yet."""
    op.add_column("tenants", sa.Column("packages_allow", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Back: what they have registered stays."""
    op.drop_column("tenants", "packages_allow")
