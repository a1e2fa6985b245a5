"""Calls that are kept in the database.

Revision 0020, after inspections. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_TEXTS = ("issuer", "subject", "client_name", "client_version", "session", "node", "request_id", "trace_id")


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "calls",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("backend", sa.String(63), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("method", "tool", "outcome")),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False),
        sa.Column("principal_tenant", sa.String(63), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in _TEXTS),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_calls_tenant_tenants", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number", name="pk_calls"),
    )
    op.create_index("ix_calls_at_us", "calls", ["at_us"])
    op.create_index("ix_calls_tenant_at_us", "calls", ["tenant", "at_us"])


def downgrade() -> None:
    """Back. No call is kept."""
    op.drop_table("calls")
