"""Backends that are reached by URL.

Revision 0014, after guides. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("backends", sa.Column("url", sa.Text()))
    op.add_column("backends", sa.Column("transport", sa.String(16), nullable=False, server_default="auto"))
    op.add_column("backends", sa.Column("headers", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    """Back. Backends that are reached by URL are removed: the older version would start their empty command."""
    op.execute("DELETE FROM backends WHERE url IS NOT NULL")
    for name in ("headers", "transport", "url"):
        op.drop_column("backends", name)
