"""Backends that are HTTP APIs: their document, and what was made of it.

Revision 0026, after sealed definitions. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. No backend has one yet."""
    op.add_column("backends", sa.Column("openapi", sa.Text))
    op.add_column("backends", sa.Column("openapi_made", sa.String(64), nullable=False, server_default=""))
    op.add_column("backends", sa.Column("api", sa.LargeBinary))


def downgrade() -> None:
    """Back. Those that have one are removed: without it each would be taken for a server of MCP."""
    op.execute("DELETE FROM backends WHERE openapi IS NOT NULL")
    op.drop_column("backends", "api")
    op.drop_column("backends", "openapi_made")
    op.drop_column("backends", "openapi")
