"""Whether a shared backend's unaddressed notifications go to all its sessions.

Revision 0004, after the audit trail. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("backends", sa.Column("broadcast", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Back."""
    op.drop_column("backends", "broadcast")
