"""One server from a client's configuration: Claude, Cursor, Windsurf, Cline, VS Code, OpenCode, Codex."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.importing.entry import Entry, named, normalised
from app.importing.placeholders import ASK, Values, environment

_URLS = ("url", "serverUrl", "httpUrl")
_REMOTE_TYPES = ("http", "streamableHttp", "streamable-http", "sse", "remote")
_UNDERSTOOD = {"command", "args", "env", "environment", "env_vars", "cwd", "envFile", "disabled", "enabled", "type"}


def from_client(source: str, entry: Any, supplied: Mapping[str, str]) -> Entry:
    empty, notes = named(source, normalised(source))
    if not isinstance(entry, dict):
        return empty.refused("is not an object")
    if any(entry.get(key) for key in _URLS) or entry.get("type") in _REMOTE_TYPES:
        return empty.refused("is a remote server already: only stdio servers can be imported")
    if not entry.get("command"):
        return empty.refused("has no command")
    values = Values(supplied)
    members, problems = _members(entry, values)
    if ignored := sorted(str(key) for key in entry if key not in _UNDERSTOOD):
        notes.append("ignored: " + ascii(", ".join(ignored))[1:-1])
    if (cwd := members.get("cwd")) and isinstance(cwd, str) and not cwd.startswith("/"):
        notes.append("`cwd` is below the tenant's home")
    if not members["enabled"]:
        notes.append("disabled")
    found = (*empty.problems, *problems, *values.problems())
    return replace(empty, members={"name": empty.name, **members}, problems=found, notes=(*notes, *values.notes))


def _members(entry: dict[str, Any], values: Values) -> tuple[dict[str, Any], list[str]]:
    env_file = f"`envFile` is not supported; give its variables with {ASK} and name them in `env`"
    problems = [env_file] if entry.get("envFile") else []
    command, args = entry["command"], entry.get("args") or []
    if isinstance(command, list):  # OpenCode
        command, args = command[0], [*command[1:], *(args if isinstance(args, list) else [args])]
    env = entry.get("env") or entry.get("environment") or {}
    if isinstance(env, dict):
        forwarded = entry.get("env_vars") or []  # Codex: names of variables of its own environment
        names = [name for name in forwarded if isinstance(name, str)] if isinstance(forwarded, list) else []
        env = {**{name: f"${{{name}}}" for name in names}, **env}
        env, refused = environment(env, values)
        problems += refused
    args = [values.fill(each) for each in args] if isinstance(args, list) else args
    is_enabled = entry.get("enabled", True) is not False and entry.get("disabled", False) is not True
    members = {"command": values.fill(command), "args": args, "env": env, "enabled": is_enabled}
    return {**members, **({"cwd": values.fill(entry["cwd"])} if entry.get("cwd") else {})}, problems
