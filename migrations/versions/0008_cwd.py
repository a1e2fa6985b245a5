"""Where a backend works: a directory, absolute or below its tenant's home.

Revision 0008, after the check value of the secret key. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("backends", sa.Column("cwd", sa.Text()))


def downgrade() -> None:
    """Back."""
    op.drop_column("backends", "cwd")
