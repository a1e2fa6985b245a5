"""Changes tables in the text of a TOML file, because the standard library can read TOML but not write it. It only finds
tables and statements: the caller must parse the result and compare."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_LINES = 500  # of one value: finding its end takes quadratic time
_HEADER = re.compile(r"\s*\[\s*([^\[\]]*?)\s*\]\s*(?:#.*)?")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A header (`table` is its path), a statement with the first parts of its keys, or comments and empty lines."""

    text: str
    table: tuple[str, ...] | None = None
    keys: frozenset[str] = frozenset()


def set_table(text: str, path: tuple[str, ...], values: Mapping[str, str], replaced: frozenset[str]) -> str:
    """The text with these values in the table, and without its keys and sub-tables in `replaced`.

    Raises:
        ValueError: the text is not TOML, or a value has too many lines.
    """
    written = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    kept, is_found = list[str](), False
    table, depth = tuple[str, ...](), len(path)
    for piece in _pieces(text):
        table = table if piece.table is None else piece.table
        names = piece.keys if table == path else table[depth : depth + 1] if table[:depth] == path else ()
        if replaced.intersection(names):
            continue
        kept.append(piece.text)
        if piece.table == path:
            kept.append(written)
            is_found = True
    changed = "".join(kept)
    if is_found:
        return changed
    gap = "" if not changed.strip() else "\n" if changed.endswith("\n") else "\n\n"
    return f"{changed}{gap}[{'.'.join(path)}]\n{written}"


def _pieces(text: str) -> list[_Piece]:
    lines, pieces, at = text.splitlines(keepends=True), list[_Piece](), 0
    while at < len(lines):
        if lines[at].lstrip().startswith("["):
            pieces.append(_Piece(lines[at], _table_of(lines[at])))
            at += 1
            continue
        size, keys = _statement(lines[at : at + MAX_LINES])
        pieces.append(_Piece("".join(lines[at : at + size]), keys=keys))
        at += size
    if pieces and not pieces[-1].text.endswith("\n"):
        pieces[-1] = _Piece(pieces[-1].text + "\n", pieces[-1].table, pieces[-1].keys)
    return pieces


def _table_of(line: str) -> tuple[str, ...]:
    """The path of a table; for an array of tables one that matches nothing."""
    if not _HEADER.fullmatch(line.rstrip("\r\n")):
        return ("[[",)
    path, found = list[str](), tomllib.loads(line)
    while found:
        ((name, found),) = found.items()
        path.append(name)
    return tuple(path)


def _statement(lines: Sequence[str]) -> tuple[int, frozenset[str]]:
    """The number of lines of the first statement, and its keys. Tries more lines until they can be parsed."""
    problem = ValueError("a value has no end")
    for size in range(1, len(lines) + 1):
        try:
            return size, frozenset(tomllib.loads("".join(lines[:size])))
        except ValueError as error:
            problem = error
    raise problem
