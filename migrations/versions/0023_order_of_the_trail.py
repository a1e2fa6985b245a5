"""Numbers in the audit trail that grow in the order of commits.

Revision 0023, after warm processes by demand. Runs on SQLite and PostgreSQL.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. SQLite has one writer at a time.

    The trigger runs before the row gets its number, and the lock ends after the row can be seen. Whoever stands still
    between the two is thrown out before other writers give up.
    """
    if op.get_bind().dialect.name == "sqlite":
        return
    op.execute(
        "CREATE FUNCTION audit_in_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM set_config('idle_in_transaction_session_timeout', '2s', true); "
        "PERFORM pg_advisory_xact_lock(TG_RELID::bigint); RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_in_turn BEFORE INSERT ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_in_turn()"
    )


def downgrade() -> None:
    """Back."""
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP TRIGGER audit_in_turn ON audit")
        op.execute("DROP FUNCTION audit_in_turn()")
