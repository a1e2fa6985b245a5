"""Whether the messages of a tenant's sessions may be inspected.

Revision 0019, after registries. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Tenants that are there already allow it: it needs one of their administrators, or of the platform."""
    op.add_column("tenants", sa.Column("inspections", sa.String(16), nullable=False, server_default="allowed"))


def downgrade() -> None:
    """Back. There are no inspections."""
    op.drop_column("tenants", "inspections")
