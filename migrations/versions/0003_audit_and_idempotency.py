"""The audit trail, which only grows, and requests that are answered once.

Revision 0003, after issuers. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_REFUSED = "the audit trail only grows"


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("actor_tenant", sa.String(63), nullable=False),
        sa.Column("actor_issuer", sa.Text(), nullable=False),
        sa.Column("actor_subject", sa.Text(), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        # Or SQLite gives the id of a deleted last row to the next one.
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_tenant_id", "audit", ["tenant", "id"])
    _make_it_only_grow()
    op.create_table(
        "idempotency",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("caller", sa.LargeBinary(32), nullable=False),
        sa.Column("body", sa.LargeBinary(32), nullable=False),
        sa.Column("answer", sa.LargeBinary()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_idempotency_tenant_tenants", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name="pk_idempotency"),
    )
    for column in ("tenant", "caller", "created_at"):
        op.create_index(f"ix_idempotency_{column}", "idempotency", [column])


def _make_it_only_grow() -> None:
    """The second wall; the first is that no code of ours does it."""
    if op.get_bind().dialect.name == "sqlite":
        for what in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{what.lower()} BEFORE {what} ON audit "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION audit_only_grows() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSED}' USING ERRCODE = 'insufficient_privilege'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_only_grows()"
    )


def downgrade() -> None:
    """Back."""
    op.drop_table("idempotency")
    op.drop_table("audit")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION audit_only_grows()")
