"""How many calls of one session its backend may work on at once.

Revision 0005, after broadcast. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("backends", sa.Column("calls_per_session", sa.Integer(), nullable=False, server_default="128"))


def downgrade() -> None:
    """Back."""
    op.drop_column("backends", "calls_per_session")
