"""One server from a client's configuration: Claude, Cursor, Windsurf, Cline, VS Code, OpenCode, Codex."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.admin.importing._entry import Entry, named, normalised
from app.admin.importing._placeholders import ASK, Values, environment, trimmed

_URLS = ("url", "serverUrl", "httpUrl")
_REMOTE_TYPES = ("http", "streamableHttp", "streamable-http", "sse", "remote")
# What a person may use, as the clients call it: Codex, Gemini, Windsurf.
_TOOLS = {
    "enabled_tools": "include", "includeTools": "include",
    "disabled_tools": "exclude", "excludeTools": "exclude", "disabledTools": "exclude",
}  # fmt: skip
_OF_ALL = {"startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", *_TOOLS}
_UNDERSTOOD = {
    "command", "args", "env", "environment", "env_vars", "cwd", "envFile", "disabled", "enabled", "type", *_OF_ALL,
}  # fmt: skip
_OF_URL = {
    *_URLS, "headers", "http_headers", "env_http_headers", "bearer_token_env_var", "type", "transport", "disabled",
    "enabled", *_OF_ALL,
}  # fmt: skip
_TRANSPORTS = {"sse": "sse"} | dict.fromkeys(
    ("http", "streamableHttp", "streamable-http", "streamable_http"), "streamable-http"
)


_YES, _NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


def from_client(source: str, entry: Any, supplied: Mapping[str, str], name: str | None = None) -> Entry:
    """`name`: of the backend, if it is not to be that of the server."""
    empty, notes = named(source, normalised(source) if name is None else name)
    if not isinstance(entry, dict):
        return empty.refused("is not an object")
    is_remote = any(entry.get(key) for key in _URLS) or entry.get("type") in _REMOTE_TYPES
    if not is_remote and not entry.get("command"):
        return empty.refused("has no command")
    values = Values(supplied)
    members, problems = _remote(entry, values) if is_remote else _members(entry, values)
    members |= _of_all(entry)
    if ignored := sorted(str(key) for key in entry if key not in (_OF_URL if is_remote else _UNDERSTOOD)):
        notes.append("ignored: " + ascii(", ".join(ignored))[1:-1])
    if (cwd := members.get("cwd")) and isinstance(cwd, str) and not cwd.startswith("/"):
        notes.append("`cwd` is below the process's home")
    members["enabled"], unreadable = _is_enabled(entry)
    notes += unreadable
    if not members["enabled"]:
        notes.append("disabled")
    found = (*empty.problems, *problems, *values.problems())
    return replace(empty, members={"name": empty.name, **members}, problems=found, notes=(*notes, *values.notes))


def _remote(entry: dict[str, Any], values: Values) -> tuple[dict[str, Any], list[str]]:
    """Of a server that is reached by URL. Codex names variables of its own environment."""
    url = next((entry[key] for key in _URLS if entry.get(key)), None)
    if url is None:
        return {}, ["has no URL"]
    kind = entry.get("type") or entry.get("transport") or ("http" if entry.get("httpUrl") else "")
    headers: dict[str, Any] = {}
    problems = list[str]()
    for member in ("headers", "http_headers", "env_http_headers"):
        found = entry.get(member) or {}
        if not isinstance(found, dict):
            problems.append(f"`{member}` is not an object")
            continue
        is_named = member == "env_http_headers"
        for name, value in values.without_nulls(found).items():
            headers[str(name)] = trimmed(values.text(f"${{{value}}}" if is_named else value))
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = trimmed("Bearer " + str(values.fill(f"${{{token}}}")))
    transport = _TRANSPORTS.get(str(kind), "auto")
    return {"url": trimmed(values.fill(url)), "transport": transport, "headers": headers}, problems


def _is_enabled(entry: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether the file has the server started, and what cannot be read there: then it has not."""
    is_enabled, notes = True, list[str]()
    for member, on, off in (("enabled", _YES, _NO), ("disabled", _NO, _YES)):
        value = entry.get(member)
        if value is None:
            continue
        word = str(value).strip().lower()
        is_enabled = is_enabled and word in on
        if word not in on | off:
            notes.append(f"`{member}` is neither true nor false")
    return is_enabled, notes


def _of_all(entry: dict[str, Any]) -> dict[str, Any]:
    """Members of servers of every kind. Of the wrong type they are refused where the backend is validated."""
    members, timeouts = dict[str, Any](), dict[str, Any]()
    milliseconds = entry.get("startup_timeout_ms")
    if isinstance(milliseconds, int) and not isinstance(milliseconds, bool):
        timeouts["initialize_s"] = milliseconds / 1000
    for name, member in (("startup_timeout_sec", "initialize_s"), ("tool_timeout_sec", "call_s")):
        if name in entry:
            timeouts[member] = entry[name]
    for name, meant in _TOOLS.items():
        member, found = meant, entry.get(name)
        if member == "include" and found == []:  # it enables none: without `include` all would be meant
            member, found = "exclude", ["*"]
        if found:
            before = members.get(member)
            members[member] = [*before, *found] if isinstance(before, list) and isinstance(found, list) else found
    return members | ({"timeouts": timeouts} if timeouts else {})


def _name_of(variable: Any) -> str | None:
    """Of a variable that Codex passes on: a name, or an object with one."""
    name = variable.get("name") if isinstance(variable, dict) else variable
    return name if isinstance(name, str) else None


def _members(entry: dict[str, Any], values: Values) -> tuple[dict[str, Any], list[str]]:
    env_file = f"`envFile` is not supported; give its variables with {ASK} and name them in `env`"
    problems = [env_file] if entry.get("envFile") else []
    command, args = entry["command"], entry.get("args") or []
    if isinstance(command, list):  # OpenCode
        command, args = command[0], [*command[1:], *(args if isinstance(args, list) else [args])]
    env = entry.get("env") or entry.get("environment") or {}
    if isinstance(env, dict):
        forwarded = entry.get("env_vars") or []  # Codex: names of variables of its own environment
        names = [name for each in forwarded if (name := _name_of(each))] if isinstance(forwarded, list) else []
        env = {**{name: f"${{{name}}}" for name in names}, **env}
        env, refused = environment(env, values)
        problems += refused
    # What is in `env` is not shown, but `args` are: the program finds its variables itself, as mcp-remote does.
    own = env if isinstance(env, dict) else ()
    args = [values.text(each, own) for each in args] if isinstance(args, list) else args
    if kept := [name for name in own if f"${{{name}}}" in str(args)]:
        shown = ascii(", ".join(f"${{{name}}}" for name in kept))[1:-1]
        values.notes.append(
            f"`args` keep {shown}, which `env` has: a program that does not put it in itself needs the value "
            "written into `args`, where it is shown"
        )
    members = {"command": values.fill(command), "args": args, "env": env}
    return {**members, **({"cwd": values.fill(entry["cwd"])} if entry.get("cwd") else {})}, problems
