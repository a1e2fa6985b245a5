"""A migrated SQLite database: made once in each process, copied for each test. Alembic takes longer than most tests."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import make_url

from app.auth.sealing import Sealer
from app.storage.migrate import upgrade

SEALER = Sealer(b"s" * 32)


@cache
def migrated_file() -> bytes:
    """What stands in a fresh one."""
    with TemporaryDirectory() as folder:
        upgrade(f"sqlite:///{folder}/test.db")
        return Path(folder, "test.db").read_bytes()


def migrate(url: str) -> str:
    """What `upgrade` does, where a SQLite database is not there yet; its folder need not be either. Returns the URL."""
    file = Path(str(make_url(url).database))
    if file.exists():
        return url
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_bytes(migrated_file())
    file.chmod(0o600)
    return url
