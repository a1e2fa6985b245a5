"""A new optional member of a backend touches its declaration, and a migration, as members are columns: nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEFORE = "    timeouts: Timeouts = field(default_factory=Timeouts)\n"
MEMBER = '    colour: Annotated[Literal["red", "blue"], Meta(description="Of its card.")] = "red"\n'
MIGRATION = '''"""The colour of a backend."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "added", "{head}", None, None


def upgrade() -> None:
    """Forward."""
    op.add_column("backends", sa.Column("colour", sa.String(16), nullable=False, server_default="red"))
'''


@pytest.mark.real
def test_a_member_that_is_declared_is_known_everywhere(tmp_path: Path) -> None:
    for folder in ("app", "migrations"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    declaration = tmp_path / "app/domain/resources/backends.py"
    text = declaration.read_text()
    assert text.count(BEFORE) == 1
    declaration.write_text(text.replace(BEFORE, MEMBER + BEFORE))
    versions = tmp_path / "migrations/versions"
    head = max(each.name for each in versions.glob("0*.py"))[:4]
    (versions / "added.py").write_text(MIGRATION.format(head=head))
    done = subprocess.run(
        [sys.executable, "-m", "tests.admin.added_member"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, timeout=110, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
