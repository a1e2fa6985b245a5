"""Issuers of the platform, and the tenants that they open.

Revision 0009, after the working directory of backends. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.add_column("issuers", sa.Column("tenants_claim", sa.String(256)))
    op.create_table(
        "issuer_tenants",
        sa.Column("issuer_id", sa.String(16), nullable=False),
        sa.Column("value", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["issuer_id"], ["issuers.id"], name="fk_issuer_tenants_issuer_id_issuers", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant"], ["tenants.name"], name="fk_issuer_tenants_tenant_tenants", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("issuer_id", "value", name="pk_issuer_tenants"),
    )
    op.create_index("ix_issuer_tenants_tenant", "issuer_tenants", ["tenant"])


def downgrade() -> None:
    """Back. Issuers of the platform go: without their list they would open the tenant `default`."""
    op.execute("DELETE FROM issuers WHERE tenants_claim IS NOT NULL")
    op.drop_index("ix_issuer_tenants_tenant", "issuer_tenants")
    op.drop_table("issuer_tenants")
    op.drop_column("issuers", "tenants_claim")
