"""Packages of npm and PyPI that backends are installed from, by the hash of their lock.

Revision 0028, after connections to servers elsewhere. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward: no backend has one yet."""
    op.create_table(
        "packages",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("lock", sa.String(64), nullable=False),
        sa.Column("registry", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("version", sa.String(255), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "lock", name="pk_packages"),
        sa.ForeignKeyConstraint(
            ["tenant"], ["tenants.name"], name="fk_packages_tenant_tenants", ondelete="CASCADE"
        ),
    )  # fmt: skip
    op.add_column("backends", sa.Column("package", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Back: their backends have the command that names them."""
    op.drop_column("backends", "package")
    op.drop_table("packages")
