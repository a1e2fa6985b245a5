"""How people sign in to the console with an issuer.

Revision 0017, after console sessions. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("issuers", sa.Column("sign_in", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Back. People sign in with a key."""
    op.drop_column("issuers", "sign_in")
