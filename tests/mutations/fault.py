"""One named fault."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: in `file`, `new` in the place of `old`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]  # paths, or node ids, for pytest
