"""What administrators of a tenant may let its backends reach.

Revision 0024, after numbers in the order of commits. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

backends = sa.table(
    "backends", sa.column("tenant", sa.String()), sa.column("name", sa.String()), sa.column("sandbox", sa.JSON())
)


def upgrade() -> None:
    """Forward. Nothing yet."""
    op.add_column("tenants", sa.Column("network_allow", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Back. The older version knows no list of what is reached: backends that have one get what opens less."""
    connection = op.get_bind()
    for tenant, name, sandbox in connection.execute(sa.select(backends)).all():
        network = sandbox["network"]
        if isinstance(network, dict):
            before = {**sandbox, "network": "web" if network.get("web") else "none"}
            row = (backends.c.tenant == tenant) & (backends.c.name == name)
            connection.execute(backends.update().where(row).values(sandbox=before))
    op.drop_column("tenants", "network_allow")
