"""Sessions of the console.

Revision 0016, after recipes. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "console_sessions",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("caller", sa.LargeBinary(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_console_sessions"),
    )
    op.create_index("ix_console_sessions_caller", "console_sessions", ["caller"])
    op.create_index("ix_console_sessions_ends_at", "console_sessions", ["ends_at"])


def downgrade() -> None:
    """Back. Everybody signs in again."""
    op.drop_table("console_sessions")
