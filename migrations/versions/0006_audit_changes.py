"""What an act has changed, and indexes for what the audit trail is asked.

Revision 0006, after calls per session. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_INDEXES = (("at",), ("request_id",), ("action", "id"), ("target", "id"), ("actor_subject", "id"))


def upgrade() -> None:
    """Forward."""
    op.add_column("audit", sa.Column("changes", sa.JSON()))
    for columns in _INDEXES:
        op.create_index(f"ix_audit_{'_'.join(columns)}", "audit", list(columns))


def downgrade() -> None:
    """Back."""
    for columns in _INDEXES:
        op.drop_index(f"ix_audit_{'_'.join(columns)}", "audit")
    op.drop_column("audit", "changes")
