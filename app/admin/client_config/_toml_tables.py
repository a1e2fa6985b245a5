"""Changes tables in the text of a TOML file, and nothing else of it. Imported when there is such a file: tomlkit takes
20 ms."""

from collections.abc import Mapping
from typing import Any

import tomlkit


def with_tables(text: str, entries: Mapping[tuple[str, str], Mapping[str, Any]], replaced: frozenset[str]) -> str:
    """The text with these entries, by member of the file and name in it. Of what is in `replaced`, an entry keeps only
    what it has.

    Raises:
        ValueError: the text is not TOML.
    """
    file = tomlkit.parse(text if text.endswith("\n") or not text else f"{text}\n")
    for (member, name), entry in entries.items():
        tables = file.setdefault(member, tomlkit.table(is_super_table=True))
        is_new = not isinstance(tables.get(name), dict)
        if is_new:
            tables[name] = tomlkit.table()
        for key in [each for each in tables[name] if each in replaced and each not in entry]:
            del file[member][name][key]  # found anew: a table in pieces counts them once
        table = file[member][name]
        table.update({key: value for key, value in entry.items() if table.get(key) != value})
        if is_new and member != list(file)[-1]:
            table.add(tomlkit.nl())
    return file.as_string()
