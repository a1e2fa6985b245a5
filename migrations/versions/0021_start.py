"""How a backend's processes are started.

Revision 0021, after calls. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Existing backends are executed, as before."""
    op.add_column("backends", sa.Column("start", sa.String(8), nullable=False, server_default="exec"))


def downgrade() -> None:
    """Back. All are executed."""
    op.drop_column("backends", "start")
