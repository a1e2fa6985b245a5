"""Backends whose number of warm processes follows the demand.

Revision 0022, after ways to start. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. A number stays a number."""
    op.add_column("backends", sa.Column("warm_auto", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Back. Backends without a number have none warm."""
    op.drop_column("backends", "warm_auto")
