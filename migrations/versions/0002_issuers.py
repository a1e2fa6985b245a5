"""Token issuers.

Revision 0002. Runs on SQLite and PostgreSQL; the previous version works on this schema.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "issuers",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("algorithms", sa.JSON(), nullable=False),
        sa.Column("audience", sa.JSON(), nullable=False),
        sa.Column("claims", sa.JSON(), nullable=False),
        sa.Column("max_scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed_secret", sa.LargeBinary()),
        sa.Column("jwks_url", sa.Text()),
        sa.Column("discovery_url", sa.Text()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_issuers_tenant_tenants", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_issuers"),
        sa.UniqueConstraint("tenant", "issuer", name="uq_issuers_tenant_issuer"),
    )


def downgrade() -> None:
    """Back."""
    op.drop_table("issuers")
