"""Recipes of toolsets.

Revision 0015, after upstreams. Runs on SQLite and PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "recipes",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("toolset", sa.String(63), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("input_schema", sa.JSON(), nullable=False),
        sa.Column("method", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_recipes"),
        sa.ForeignKeyConstraint(
            ["tenant", "toolset"],
            ["toolsets.tenant", "toolsets.name"],
            ondelete="CASCADE",
            name="fk_recipes_tenant_toolset_toolsets",
        ),
    )


def downgrade() -> None:
    """Back. Recipes are lost."""
    op.drop_table("recipes")
