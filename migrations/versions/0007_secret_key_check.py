"""Which secret key the database was made with: a check value of it, in one row that the first start makes.

Revision 0007, after the changes in the audit trail. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "secret_key_check",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.LargeBinary(48), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_secret_key_check"),
    )


def downgrade() -> None:
    """Back."""
    op.drop_table("secret_key_check")
