"""Puts servers into the text of a client's configuration: pure. All other entries, members and comments are kept. The
new text is parsed again, by another parser where it is TOML, and compared with what was intended."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidRequest
from app.text.jsonc import read, with_member

PASTE_HERE = "PASTE-THE-KEY-HERE"
BY_HAND = "Nothing was changed; without --write the command prints what to put there by hand."

# How a server is reached: replaced as a whole. All other members of an entry belong to the user.
REACHED_BY = frozenset({
    "type", "transport", "command", "args", "env", "cwd", "envFile", "url", "serverUrl", "httpUrl", "headers", "oauth",
    "bearer_token_env_var", "http_headers", "env_http_headers",
})  # fmt: skip
_URLS = ("url", "serverUrl", "httpUrl")


@dataclass(frozen=True, slots=True)
class Merged:
    """The new text; and each server that has changed, with how it was reached before (None: it is new)."""

    text: str
    changes: Mapping[str, str | None]


def merged_json(text: str, documents: Sequence[Mapping[str, Any]]) -> Merged:
    """The text of a JSON file, which may have comments and trailing commas, with the servers of the documents added.

    Raises:
        InvalidRequest: it is not such a file.
    """
    text = text if text.strip() else "{}\n"
    try:
        before = read(text).value
        if not isinstance(before, dict):
            raise _refused("it is not an object")
        wanted = deepcopy(before)
        changes = dict[str, str | None]()
        for document in documents:
            for member, value in document.items():
                text = _with(text, wanted, changes, member, value)
        if read(text).value != wanted:
            raise _refused("it cannot be changed safely")
    except ValueError as error:
        raise _refused(f"it is not JSON: {error}") from None
    return Merged(text, changes)


def merged_toml(text: str, documents: Sequence[Mapping[str, Any]]) -> Merged:
    """Like `merged_json`, for a TOML file with tables of the form `[mcp_servers.NAME]`.

    Raises:
        InvalidRequest: it is not such a file.
    """
    from app.admin.client_config._toml_tables import with_tables  # noqa: PLC0415 - one client of ten has such a file

    changes, changed = dict[str, str | None](), dict[tuple[str, str], dict[str, Any]]()
    try:
        wanted = tomllib.loads(text)
        for document in documents:
            for member, servers in document.items():
                merged = _merge(_object_of(wanted, member), servers, changes)
                changed |= {(member, name): entry for name, entry in merged.items()}
        text = with_tables(text, changed, REACHED_BY)
        if _as_toml(text) != wanted:
            raise LookupError
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    except LookupError:  # tomlkit loses count in tables that stand in many pieces
        raise _refused("it has servers in a form that cannot be changed safely") from None
    except ValueError as error:
        raise _refused(f"it is not TOML: {error}") from None
    return Merged(text, changes)


def merged_entry(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """The new entry with all that the old one has beside REACHED_BY. At the same address also with the old headers and
    variables that the new one lacks, and with the old key where the new one has only a placeholder."""
    if not isinstance(old, dict):
        return dict(new)
    merged = {**new, **{name: value for name, value in old.items() if name not in REACHED_BY}}
    if _address(old) == _address(new):
        for member in ("headers", "env"):
            if isinstance(old.get(member), dict) and isinstance(new.get(member), dict):
                merged[member] = _fields(old[member], new[member])
    return merged


def _with(text: str, wanted: dict[str, Any], changes: dict[str, str | None], member: str, value: Any) -> str:
    """The text with this member of a document merged, as also in `wanted` and `changes`."""
    if isinstance(value, list):  # inputs of VS Code, by their ids
        there = wanted.get(member) or []
        if not isinstance(there, list):
            raise _refused(f"its `{member}` is not a list")
        known = {each.get("id") for each in there if isinstance(each, dict)}
        missing = [each for each in value if each["id"] not in known]
        if not missing:
            return text
        wanted[member] = [*there, *missing]
        return with_member(text, (), member, wanted[member])
    if wanted.get(member) is None:
        text = with_member(text, (), member, {})
    for name, merged in _merge(_object_of(wanted, member), value, changes).items():
        text = with_member(text, (member,), name, merged)
    return text


def _merge(
    servers: dict[str, Any], entries: Mapping[str, Any], changes: dict[str, str | None]
) -> dict[str, dict[str, Any]]:
    """Puts the entries into `servers`. Returns those that differ, and adds them to `changes`."""
    changed = {}
    for name, entry in entries.items():
        old, merged = servers.get(name), merged_entry(servers.get(name), entry)
        if merged != old:
            changes[name] = None if old is None else _reached_by(old)
            servers[name] = changed[name] = merged
    return changed


def _as_toml(text: str) -> Any:
    """The parsed text; None if it is not TOML."""
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


def _object_of(document: dict[str, Any], member: str) -> dict[str, Any]:
    if document.get(member) is None:
        document[member] = {}
    found = document[member]
    if not isinstance(found, dict):
        raise _refused(f"its `{member}` is not an object")
    return found


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    names = {name.lower(): name for name in new}
    fields = dict(new)
    for name, value in old.items():
        ours = names.get(name.lower())
        if ours is None:
            fields[name] = value
        elif PASTE_HERE in new[ours]:
            fields[ours] = value
    return fields


def _address(entry: Mapping[str, Any]) -> str | None:
    """Its URL, which may be an argument of its command."""
    args = entry.get("args")
    candidates = [*(entry.get(member) for member in _URLS), *(args if isinstance(args, list) else [])]
    return next((each for each in candidates if isinstance(each, str) and each.startswith(("http:", "https:"))), None)


def _reached_by(entry: Any) -> str:
    """For people: without arguments and headers, which may contain secrets."""
    found = (_address(entry) or entry.get("command")) if isinstance(entry, dict) else None
    return json.dumps(found.partition("?")[0][:200])[1:-1] if isinstance(found, str) else "something else"


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(f"{problem}. {BY_HAND}")
