"""The authorization server of a tenant: its clients, and what people have allowed them.

Revision 0030, after packages of tenants. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward. No tenant has one yet."""
    op.add_column("tenants", sa.Column("sign_in", sa.JSON(none_as_null=True)))
    op.add_column("issuers", sa.Column("sealed_client_secret", sa.LargeBinary()))
    op.create_table(
        "clients",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("redirect_uris", sa.JSON(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("authentication", sa.String(16), nullable=False),
        sa.Column("jwks_url", sa.Text()),
        sa.Column("salt", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_clients"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], ondelete="CASCADE", name="fk_clients_tenant_tenants"),
    )
    op.create_table(
        "connections",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("client_id", sa.String(1000), nullable=False),
        sa.Column("client_title", sa.String(200), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("backend", sa.String(63), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("base_url", sa.String(1000), nullable=False),
        sa.Column("redirect_uri", sa.String(1000), nullable=False),
        sa.Column("challenge", sa.String(43), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("turned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_connections"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], ondelete="CASCADE", name="fk_connections_tenant_tenants"),
    )
    op.create_index("ix_connections_person", "connections", ["tenant", "issuer", "subject"])
    op.create_index("ix_connections_client", "connections", ["tenant", "client_id"])
    op.create_index("ix_connections_ends_at", "connections", ["ends_at"])
    op.create_table(
        "people",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("tenant", "issuer", "subject", name="pk_people"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], ondelete="CASCADE", name="fk_people_tenant_tenants"),
    )


def downgrade() -> None:
    """Back. Clients and connections are lost."""
    op.drop_table("people")
    op.drop_table("connections")
    op.drop_table("clients")
    op.drop_column("issuers", "sealed_client_secret")
    op.drop_column("tenants", "sign_in")
