"""How the processes of a backend are confined, what they may use, and whether they keep files.

Backends of before keep running as they did: with the network of the node, and without limits. Tenants lose the limit of
512 MiB, a default that was never enforced.

Revision 0011, after what is switched off. Runs on SQLite and PostgreSQL.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OLD_DEFAULT_MB = 512
AS_BEFORE = {"mode": "auto", "network": "host"}
UNLIMITED = dict.fromkeys(("memory_mb", "pids", "cpu", "files", "disk_mb"))
NOT_CONFINED = "its sandbox is required, and this version has none"

tenants = sa.table("tenants", sa.column("name", sa.String()), sa.column("limits", sa.JSON()))
backends = sa.table(
    "backends",
    sa.column("sandbox", sa.JSON()),
    sa.column("enabled", sa.Boolean()),
    sa.column("reason", sa.String()),
    sa.column("off_by_platform", sa.Boolean()),
)


def upgrade() -> None:
    """Forward."""
    op.add_column("tenants", sa.Column("sandbox_exempt", sa.Boolean(), nullable=False, server_default=sa.false()))
    for name, value in (("sandbox", AS_BEFORE), ("limits", UNLIMITED)):
        op.add_column("backends", sa.Column(name, sa.JSON(), nullable=False, server_default=json.dumps(value)))
        with op.batch_alter_table("backends") as batch:  # every new row says what it wants
            batch.alter_column(name, server_default=None)
    op.add_column("backends", sa.Column("state", sa.String(16), nullable=False, server_default="none"))
    connection = op.get_bind()
    for row in connection.execute(sa.select(tenants)).all():
        if row.limits.get("memory_mb") == OLD_DEFAULT_MB:
            limits = {**row.limits, "memory_mb": None}
            connection.execute(tenants.update().where(tenants.c.name == row.name).values(limits=limits))


def downgrade() -> None:
    """Back. What may only run in a sandbox is switched off: the older version would run it without one."""
    is_required = backends.c.sandbox["mode"].as_string() == "require"
    off = {"enabled": False, "reason": NOT_CONFINED, "off_by_platform": True}
    op.execute(backends.update().where(is_required).values(off))
    for name in ("state", "limits", "sandbox"):
        op.drop_column("backends", name)
    op.drop_column("tenants", "sandbox_exempt")
