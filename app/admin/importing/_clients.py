"""One server from a client's configuration, whichever client it is: see `_forms`."""

import base64
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from app.admin.importing._bridges import bridged
from app.admin.importing._entry import Entry, named, normalised
from app.admin.importing._forms import flat
from app.admin.importing._placeholders import ASK, Values, environment, trimmed
from app.text.command_line import CommandLine, plain

_URLS = ("url", "serverUrl", "httpUrl")
_TRANSPORTS = {"sse": "sse"} | dict.fromkeys(
    ("http", "streamableHttp", "streamable-http", "streamable_http", "streamablehttp"), "streamable-http"
)
_REMOTE_TYPES = (*_TRANSPORTS, "remote")
_NOT_STARTED = {  # types of servers that are no program and no URL, and what to do about them
    "builtin": "is built into its client: there is nothing to start",
    "platform": "is built into its client: there is nothing to start",
    "frontend": "is built into its client: there is nothing to start",
    "inline_python": "is a piece of Python within its client: make it a program, and give that as `command`",
    "ws": "is reached by WebSocket, which the gateway does not speak: give its address for Streamable HTTP as `url`",
    "websocket": "is reached by WebSocket, which the gateway does not speak: give its address for Streamable HTTP as "
    "`url`",
}
# What a person may use, as the clients call it: Codex, Gemini, Windsurf, Copilot.
_TOOLS = {
    "enabled_tools": "include", "includeTools": "include", "tools": "include",
    "disabled_tools": "exclude", "excludeTools": "exclude", "disabledTools": "exclude",
}  # fmt: skip
# Members that limit a time: which of ours, and how many of its units are a second.
_TIMEOUTS = {
    "startup_timeout_sec": ("initialize_s", 1), "startup_timeout_ms": ("initialize_s", 1000),
    "connectionTimeout": ("initialize_s", 1000), "initTimeout": ("initialize_s", 1000),
    "tool_timeout_sec": ("call_s", 1),
}  # fmt: skip
MAX_SECONDS = 3600  # of a `timeout`: more are milliseconds. Cline, Roo and Goose mean seconds, most others do not
_OF_ALL = {*_TOOLS, *_TIMEOUTS, "timeout", "type", "disabled", "enabled", "transport"}
_SAID_ELSEWHERE = {"name", "description", "source", "display_name", "icon", "iconPath", "$schema", "id"}
_UNDERSTOOD = {"command", "args", "env", "env_vars", "cwd", "envFile", *_OF_ALL, *_SAID_ELSEWHERE}
_OF_URL = {
    *_URLS, "headers", "http_headers", "env_http_headers", "bearer_token_env_var", "env_vars", "authorization_token",
    *_OF_ALL, *_SAID_ELSEWHERE,
}  # fmt: skip
_USER = re.compile(r"(?i)(https?://)([^\s/@?#]+)@")
_YES, _NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})


def from_client(
    source: str,
    entry: Any,
    supplied: Mapping[str, str],
    name: str | None = None,
    defaults: Mapping[str, str] = _NO_DEFAULTS,
) -> Entry:
    """`name`: of the backend, if it is not to be that of the server. `defaults`: of what the file asks a person for."""
    empty, notes = named(source, normalised(source) if name is None else name)
    if not isinstance(entry, dict):
        return empty.refused("is not an object")
    entry, values = flat(entry), Values(supplied, defaults)
    line = None if _is_remote(entry) else _command_line(entry, notes)
    if line is not None and (bridge := bridged(line.words, _variables(entry.get("env"), line.env))) is not None:
        entry = {**{key: entry[key] for key in entry if key in _OF_ALL - {"type", "transport"}}, **bridge.entry}
        line, notes = None, notes + bridge.notes
    is_remote = line is None and _is_remote(entry)
    if line is None and (not is_remote or entry.get("type") in _NOT_STARTED):
        return empty.refused(_nothing_to_start(entry))
    members, problems = _process(line, entry, values) if line is not None else _remote(entry, values)
    members |= _of_all(entry, notes)
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


def _is_remote(entry: Mapping[str, Any]) -> bool:
    return any(entry.get(key) for key in _URLS) or entry.get("type") in _REMOTE_TYPES


def _nothing_to_start(entry: Mapping[str, Any]) -> str:
    if known := _NOT_STARTED.get(str(entry.get("type"))):
        return known
    if entry.get("source") == "extension" or "settings" in entry:
        return "is an extension of its editor, whose command is not in the file: add that as `command`"
    return "has no command"


# --- servers that are reached by URL


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
    if token := entry.get("authorization_token"):
        headers["Authorization"] = trimmed("Bearer " + str(values.fill(token)))
    transport = _TRANSPORTS.get(str(kind), "auto")
    address = _without_user(values.fill(url), headers, values)
    return {"url": address, "transport": transport, "headers": headers}, problems


def _without_user(url: Any, headers: dict[str, Any], values: Values) -> Any:
    """The URL of a backend has no user: a program of HTTP sends one in a header."""
    url = trimmed(url)
    if not isinstance(url, str) or (found := _USER.match(url)) is None:
        return url
    values.notes.append("the user in its URL is sent as header `Authorization`")
    headers.setdefault("Authorization", "Basic " + base64.b64encode(unquote(found[2]).encode()).decode())
    return found[1] + url[found.end() :]


# --- servers that are started


def _command_line(entry: Mapping[str, Any], notes: list[str]) -> CommandLine | None:
    """What is started, without what only wraps it on the other system; None if nothing is."""
    command, args = entry.get("command"), entry.get("args")
    words = [str(each) for each in command] if isinstance(command, list) else _words_of(command)  # a list: OpenCode
    if not words:
        return None
    if isinstance(args, str):
        args = _split(args)
        notes.append("`args` is one text, which is read as a shell reads it")
    args = [*words[1:], *(args if isinstance(args, list) else [])]
    if any(not isinstance(each, str) for each in args):
        args = [Values({}).text(each) if isinstance(each, int | float) else each for each in args]
    # As in an example of Goose's documentation: both words in one.
    args = [part for each in args for part in (each.split() if isinstance(each, str) and each[:3] == "-y " else [each])]
    if any(not isinstance(each, str) for each in args):
        return CommandLine((words[0], *args))
    line = plain([words[0], *args])
    own = _variables(entry.get("env"))
    if line.wrappers[:1] == ("sh -c",) and _own_in(line.words[1:], own) and bridged(line.words, own) is None:
        return CommandLine((words[0], *args))  # the shell puts them in
    if line.wrappers:
        shown = ascii(", ".join(line.wrappers))[1:-1]
        notes.append(f"without {shown}, which only the system that it was written for needs")
    return line


def _words_of(command: Any) -> list[str]:
    """A command with its arguments, where they stand in one text. What has a path with a space is a path."""
    if not isinstance(command, str) or not command.strip():
        return []
    is_path = command.startswith("/") or re.match(r"[A-Za-z]:[\\/]|\\\\", command)
    return [command] if is_path or not re.search(r"\s", command.strip()) else _split(command)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _variables(*found: Any) -> dict[str, Any]:
    """Of `env`, in each of the forms that it has: an object, or a list of `NAME=VALUE` or of objects."""
    variables = dict[str, Any]()
    for env in found:
        for each in env if isinstance(env, list) else ():
            if isinstance(each, str) and "=" in each:
                name, _, variables[name] = each.partition("=")
            elif isinstance(each, dict) and isinstance(each.get("name"), str):
                variables[each["name"]] = each.get("value")
        variables |= env if isinstance(env, Mapping) else {}
    return variables


def _own_in(args: Any, env: Any) -> list[str]:
    """Names of the server's own variables that stand in its arguments."""
    return [name for name in _variables(env) if f"${{{name}}}" in str(args)]


def _process(line: CommandLine, entry: dict[str, Any], values: Values) -> tuple[dict[str, Any], list[str]]:
    problems, env = list[str](), entry.get("env") or {}
    if isinstance(env, dict | list):
        forwarded = entry.get("env_vars") or []  # Codex: names of variables of its own environment
        names = [name for each in forwarded if (name := _name_of(each))] if isinstance(forwarded, list) else []
        of_file, missing = _env_file(entry, values)
        env = {**{name: f"${{{name}}}" for name in names}, **line.env, **_variables(env)}
        env, refused = environment(env, values)
        env, problems = {**of_file, **env}, missing + refused
    # What is in `env` is not shown, but `args` are: the program finds its variables itself.
    own = env if isinstance(env, dict) else ()
    args: Any = [values.text(each, own) for each in line.words[1:]]
    if entry.get("args") and not isinstance(entry["args"], str | list):
        args = entry["args"]  # which validation refuses
    if kept := _own_in(args, env):
        shown = ascii(", ".join(f"${{{name}}}" for name in kept))[1:-1]
        values.notes.append(
            f"`args` keep {shown}, which `env` has: a program that does not put it in itself needs the value "
            "written into `args`, where it is shown"
        )
    members = {"command": values.fill(line.words[0]), "args": args, "env": env}
    cwd = entry.get("cwd") or line.cwd
    return {**members, **({"cwd": values.fill(cwd)} if cwd and cwd != "." else {})}, problems


def _name_of(variable: Any) -> str | None:
    """Of a variable that Codex passes on: a name, or an object with one."""
    name = variable.get("name") if isinstance(variable, dict) else variable
    return name if isinstance(name, str) else None


def _env_file(entry: Mapping[str, Any], values: Values) -> tuple[dict[str, str], list[str]]:
    """The variables of the file that a server names, which is given as a text."""
    if not entry.get("envFile"):
        return {}, []
    if (text := values.get("envFile")) is None:
        return {}, [f"has an `envFile`, which is not read: give its text as envFile with {ASK}"]
    lines = (line.strip().removeprefix("export ").partition("=") for line in text.splitlines())
    return {
        name.strip(): value.strip().strip("\"'")
        for name, is_set, value in lines
        if is_set and not name.startswith("#") and name.strip()
    }, []


# --- members of servers of every kind


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


def _of_all(entry: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Members of servers of every kind. Of the wrong type they are refused where the backend is validated."""
    members, timeouts = dict[str, Any](), dict[str, Any]()
    for name, (meant, units) in _TIMEOUTS.items():
        if units == 1 and name in entry:
            timeouts[meant] = entry[name]
        elif _is_number(entry.get(name)):
            timeouts.setdefault(meant, entry[name] / units)
    limit: Any = entry.get("timeout")
    if _is_number(limit) and limit > 0:
        is_of_opencode = entry.get("type") in ("local", "remote")  # there it is for the list of tools
        seconds = limit / 1000 if is_of_opencode or limit > MAX_SECONDS else limit
        timeouts.setdefault("initialize_s" if is_of_opencode else "call_s", seconds)
        notes.append(f"`timeout` is read as {seconds:g} s")
    for name, meant in _TOOLS.items():
        member, found = meant, entry.get(name)
        if member == "include" and found == []:  # it enables none: without `include` all would be meant
            member, found = "exclude", ["*"]
        if found and not (name == "tools" and (found == ["*"] or isinstance(found, dict))):  # Codex: each tool's own
            before = members.get(member)
            members[member] = [*before, *found] if isinstance(before, list) and isinstance(found, list) else found
    return members | ({"timeouts": timeouts} if timeouts else {})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
