"""Secrets of definitions: sealed, in a column of their own.

Revision 0025, after what tenants may let backends reach. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. A node seals what is there when it starts: it has the key."""
    op.add_column("backends", sa.Column("sealed", sa.LargeBinary))


def downgrade() -> None:
    """Back. The secrets are lost, and backends that had some are switched off."""
    op.execute(
        "UPDATE backends SET enabled = false, reason = 'its secrets were lost on the way back: set them again' "
        "WHERE sealed IS NOT NULL AND length(sealed) > 0"
    )
    op.drop_column("backends", "sealed")
