"""Who may use which tools, and how often.

Revision 0031, after the authorization server of a tenant. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. Everybody who may connect may use everything, as before."""
    for table, column in (("backends", "access"), ("toolsets", "access"), ("people", "groups")):
        op.add_column(table, sa.Column(column, sa.JSON(), nullable=False, server_default="[]"))
    op.create_table(
        "call_counts",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_call_counts"),
    )
    op.create_index("ix_call_counts_ends_at", "call_counts", ["ends_at"])


def downgrade() -> None:
    """Back. Lists are lost: a gateway of before lets everybody who may connect use everything."""
    op.drop_table("call_counts")
    for table, column in (("people", "groups"), ("toolsets", "access"), ("backends", "access")):
        op.drop_column(table, column)
