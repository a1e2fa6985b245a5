"""How a server is connected to that is reached by URL.

Revision 0027, after documents of APIs. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Existing backends are connected to as before."""
    op.add_column("backends", sa.Column("connect", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    """Back. What needs certificates of its own is not reached any more."""
    op.drop_column("backends", "connect")
