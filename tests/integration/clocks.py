"""Clocks of a gateway that a test moves from outside its process."""

from collections.abc import Sequence
from pathlib import Path

_MOVED = """
import datetime as _datetime, importlib as _importlib, pathlib as _pathlib
class _Later(_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return _datetime.datetime.now(tz) + _datetime.timedelta(seconds=float(_pathlib.Path({file!r}).read_text()))
for _name in {modules!r}:
    _importlib.import_module(_name).datetime = _Later
"""


class Clock:
    """What `datetime.now` says in some modules, where `first` runs before the command (`Gateway.FIRST`)."""

    def __init__(self, file: Path, modules: Sequence[str]) -> None:
        self._file, self.first = file, _MOVED.format(file=str(file), modules=list(modules))
        self.is_ahead(0)

    def is_ahead(self, seconds: float) -> None:
        """So many seconds from now on."""
        fresh = self._file.with_suffix(".fresh")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)  # nobody reads half of it
