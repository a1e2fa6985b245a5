"""SqliteFile: the files of an SQLite database, which somebody may remove or replace while the node has them open."""

import os
from urllib.parse import quote

from sqlalchemy import URL

from app.errors import StorageUnavailable

GONE = (
    "The database file was removed or replaced while the node ran: stop the node, put the right file there "
    "(docs/operations.md, Backup and restore), start it again"
)
BESIDE_GONE = (
    "A file beside the database (its -wal or -shm) was removed or replaced while the node ran: stop the node, which "
    "then saves what it can, and start it again"
)
EMPTIED = "The database is damaged (its file is empty): restore its backup"
ROOM_BYTES = 2**20  # with less on its disk a database counts as full: changes need some pages each

_BESIDE = ("-wal", "-shm")  # what was stored last, and who reads and writes it

Identity = tuple[int, int]


class SqliteFile:
    """Knows which file was there when the node started: what is written to a removed one is lost. So is what is written
    to the files beside it, which connections share."""

    def __init__(self, url: URL) -> None:
        is_plain = url.database not in (None, "", ":memory:") and "uri" not in url.query
        self._named = os.path.abspath(str(url.database)) if is_plain else None
        self._path = None if self._named is None else os.path.realpath(self._named)  # the files beside it are there
        self._known = self._identity()
        self._had_content = self._known is not None and self._size() > 0
        self._connections = set[int]()
        self._beside: list[tuple[str, Identity]] | None = None  # None: there is no connection

    def opened(self, connection: object) -> None:
        """This connection has them open: SQLite itself removes those beside the database only with the last one."""
        self._connections.add(id(connection))
        if self._beside is None and self._path is not None:
            found = [(end, self._identity(end)) for end in _BESIDE]
            self._beside = [(end, known) for end, known in found if known is not None]

    def closed(self, connection: object) -> None:
        """This connection is about to be closed."""
        self._connections.discard(id(connection))
        if not self._connections:
            self._beside = None

    def require_same(self) -> None:
        """Raises StorageUnavailable: another file is there now, or none, or an empty one."""
        if self._known is None:
            return
        if self._identity() != self._known or (self._named != self._path and self._identity_named() != self._known):
            raise StorageUnavailable(GONE)
        if self._had_content and self._size() == 0:
            raise StorageUnavailable(EMPTIED)
        beside = self._beside
        if any(self._identity(end) != known for end, known in beside or ()) and beside is self._beside:
            raise StorageUnavailable(BESIDE_GONE)

    def uri(self) -> str | None:
        """Opens the file only if it exists; without that SQLite makes an empty one. None: it is no plain file."""
        return None if self._path is None else f"file:{quote(self._path)}?mode=rw"

    def has_room(self) -> bool:
        """Whether its disk has space for changes."""
        if self._path is None:
            return True
        try:
            disk = os.statvfs(os.path.dirname(self._path))
        except OSError:
            return True
        return disk.f_bavail * disk.f_frsize >= ROOM_BYTES

    def _identity(self, end: str = "") -> Identity | None:
        try:
            found = os.lstat(self._path + end) if self._path is not None else None
        except OSError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

    def _identity_named(self) -> Identity | None:
        """Of what a link leads to."""
        try:
            found = os.stat(self._named or "")
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _size(self) -> int:
        try:
            return os.stat(self._path or "").st_size
        except OSError:
            return -1
