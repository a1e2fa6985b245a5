"""Reads other programs' lists of MCP servers: text in, entries out, each with what stands in its way.

Formats: `mcpServers` (Claude, Cursor, Windsurf, Cline), `servers` (VS Code), `mcp` (OpenCode), `mcp_servers` (Codex,
TOML) and the registry's `server.json`. Pure; what may be a secret is never invented, kept as a placeholder or shown.
"""

import json
import re
import shlex
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from app.domain import is_name
from app.errors import InvalidRequest

MAX_NAME = 63
MAX_SERVERS = 256
MAX_FILLED = 256 * 1024  # characters that take the places of one entry's placeholders: a long one can be named often
MAX_DOTS = 100  # in a line of TOML: what the parser does for a key grows with the square of its parts
EXISTS = "exists already"
ASK = "--env NAME=VALUE"  # how a value is given, as the problems say it
FORMATS = (
    "mcpServers (Claude, Cursor, Windsurf, Cline), servers or mcp.servers (VS Code), mcp (OpenCode), "
    "mcp_servers (Codex, TOML), server.json of the MCP registry"
)

# Variables that change what a program loads before its own first line runs: nothing to take over unseen from a file.
_RISKY = (
    "LD_*", "DYLD_*", "NODE_OPTIONS", "NODE_PATH", "PYTHON*", "BASH_ENV", "ENV", "PERL5OPT", "RUBYOPT", "GIT_*",
    "NPM_CONFIG_*", "PIP_*", "UV_*", "PATH",
)  # fmt: skip
_URLS = ("url", "serverUrl", "httpUrl")
_REMOTE_TYPES = ("http", "streamableHttp", "streamable-http", "sse", "remote")
_UNDERSTOOD = {"command", "args", "env", "environment", "env_vars", "cwd", "envFile", "disabled", "enabled", "type"}
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}|\{(?:env|file|input|secret):([^{}]*)\}")
_BARE_PLACEHOLDER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")  # Gemini's form; only as a whole value, `$` is common
# What has no end goes to the end of the text: looked for again from each place, it would take the square of the time.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\\?\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)

# How a package of the registry becomes a command: the runner, its own arguments, and what an identifier looks like.
_RUNNERS = {
    "npm": ("npx", ("-y",), re.compile(r"(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*")),
    "pypi": ("uvx", (), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")),
}
_ASKED_FOR = frozenset({"isRequired", "isSecret", "format", "choices", "placeholder", "valueHint"})
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One server of the file. `members` are those of a new backend; it can be made if there are no `problems`."""

    source: str
    name: str
    members: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def refused(self, *problems: str) -> "Entry":
        """The entry with more in its way."""
        return replace(self, problems=(*self.problems, *problems))

    @property
    def command_line(self) -> str:
        """What would be started, for people: quoted as a shell would want it, and nothing unprintable."""
        words = [self.members.get("command"), *self.members.get("args", ())]
        return ascii(shlex.join(map(str, words)))[1:-1] if words[0] else ""


def parse(text: str, *, is_toml: bool = False, supplied: Mapping[str, str] | None = None) -> list[Entry]:
    """Every server of the file, in its order. `supplied` are values for placeholders and variables, by name.

    Raises:
        InvalidRequest: the text is none of the formats.
    """
    try:
        return _entries(_load(text, is_toml=is_toml), supplied or {})
    except RecursionError:
        raise InvalidRequest("the file is nested too deeply") from None


def looks_like_toml(text: str) -> bool:
    """Whether a text of unknown origin is rather TOML than JSON: an object begins with its brace, or with a comment."""
    return not text.lstrip("\ufeff \t\r\n").startswith(("{", "/"))


def _entries(document: dict[str, Any], supplied: Mapping[str, str]) -> list[Entry]:
    registry = _registry_servers(document)
    clients = _client_servers(document) if registry is None else {}
    if len(registry or clients) > MAX_SERVERS:
        raise InvalidRequest(f"there are more than {MAX_SERVERS} servers in the file")
    if registry is not None:
        return [_from_registry(server, supplied) for server in registry]
    return [_from_client(str(name), entry, supplied) for name, entry in clients.items()]


def settle(entries: Sequence[Entry], taken: Collection[str]) -> list[Entry]:
    """The entries with clashes of names among their problems: of two the first gets it, nobody one that is taken."""
    settled, given = list[Entry](), dict[str, str]()
    for each in entries:
        entry = each
        if entry.name in taken:
            entry = entry.refused(EXISTS)
        elif not entry.problems and entry.name in given:
            entry = entry.refused(f"has the same name as {given[entry.name]!a}")
        elif not entry.problems:
            given[entry.name] = entry.source
        settled.append(entry)
    return settled


def is_done(entries: Sequence[Entry]) -> bool:
    """Whether every server of the file is a backend, or can become one. One that is there already is done."""
    return all(entry.problems in ((), (EXISTS,)) for entry in entries)


def report(entries: Sequence[Entry], *, applied: bool) -> str:
    """For people: a line for each."""
    lines = [
        f"{_outcome(entry, applied=applied):<12}  {entry.name or ascii(entry.source)[1:-1]:<20}  "
        + "; ".join([*(entry.problems or [entry.command_line]), *(() if entry.problems else entry.notes)])
        for entry in entries
    ]
    return "\n".join(lines or ["the list of servers is empty"])


def report_json(entries: Sequence[Entry], *, applied: bool) -> str:
    """For machines. Variables by name only."""
    shown = [
        {
            "outcome": _outcome(entry, applied=applied).replace(" ", "_"),
            "source": entry.source,
            "name": entry.name,
            "command": entry.members.get("command"),
            "args": entry.members.get("args", []),
            "env": sorted(entry.members.get("env") or ()),
            "enabled": entry.members.get("enabled"),
            "problems": entry.problems,
            "notes": entry.notes,
        }
        for entry in entries
    ]
    return json.dumps(shown, indent=2)


def _outcome(entry: Entry, *, applied: bool) -> str:
    if applied:
        return "skipped" if entry.problems else "created"
    return "would skip" if entry.problems else "would create"


def normalised(text: str) -> str:
    """A backend's name made of this text; empty if nothing of it can be used."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")


# --- which format


def _load(text: str, *, is_toml: bool) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    if is_toml and any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise InvalidRequest(f"a line of the file has more than {MAX_DOTS} dots")
    try:
        document = tomllib.loads(text) if is_toml else _load_json(text)
    except ValueError as error:
        raise InvalidRequest(f"the file is not {'TOML' if is_toml else 'JSON'}: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the file holds no object")
    return document


def _load_json(text: str) -> Any:
    """JSON, or JSON with comments and trailing commas as editors write it."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError:
        without_comments = _STRING_OR_COMMENT.sub(lambda found: found[1] or " ", text)
        plain = _STRING_OR_LAST_COMMA.sub(lambda found: found[1] or " ", without_comments)
        return json.loads(plain, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequest(f"{twice!a} stands twice in one object; which one counts?")
    return members


def _registry_servers(document: dict[str, Any]) -> list[Any] | None:
    """The `server.json` in here, if that is what it is: by itself, or as the registry's API wraps it."""
    if isinstance(document.get("servers"), list):
        return [each.get("server", each) if isinstance(each, dict) else each for each in document["servers"]]
    if isinstance(document.get("server"), dict):
        return [document["server"]]
    if isinstance(document.get("name"), str) and ("packages" in document or "remotes" in document):
        return [document]
    return None


def _client_servers(document: dict[str, Any]) -> dict[str, Any]:
    for key in ("mcpServers", "mcp_servers", "servers", "mcp"):
        servers = document.get(key)
        if key == "mcp" and isinstance(servers, dict) and isinstance(servers.get("servers"), dict):
            servers = servers["servers"]
        if isinstance(servers, dict):
            return servers
    raise InvalidRequest(
        "there are no servers in the file: no `mcpServers`, `servers`, `mcp`, `mcp_servers`, `packages`"
    )


# --- entries of clients


class _Values:
    """Puts supplied values in the place of placeholders, and remembers what was missing."""

    def __init__(self, supplied: Mapping[str, str]) -> None:
        self._supplied = supplied
        self._missing: dict[str, None] = {}
        self._unreadable, self._room = False, MAX_FILLED
        self.notes: list[str] = []

    def problems(self) -> list[str]:
        """What nobody supplied, in one sentence, and what nobody can supply."""
        names = ", ".join(ascii(name)[1:-1] for name in self._missing)
        missing = [f"needs {names}: give it with {ASK}"] if names else []
        too_long = [f"is longer than {MAX_FILLED} characters with its values"] if self._room < 0 else []
        return [*missing, *(["has a placeholder that cannot be read"] if self._unreadable else []), *too_long]

    def get(self, name: str) -> str | None:
        """The supplied value."""
        return self._supplied.get(name)

    def need(self, name: str) -> None:
        """Without this the entry cannot be made."""
        self._missing[name] = None

    def fitting(self, value: str) -> str:
        """The value, as long as there is room for it in the entry."""
        self._room -= len(value)
        return value if self._room >= 0 else ""

    def fill(self, value: Any) -> Any:
        """The string with its placeholders replaced; anything else as it is, for the validation to complain about."""
        if not isinstance(value, str):
            return value
        if whole := _BARE_PLACEHOLDER.fullmatch(value):
            return self._one(whole[1])
        if "${" in _PLACEHOLDER.sub("", value):  # one in the other, or without an end
            self._unreadable = True
        return _PLACEHOLDER.sub(lambda found: self._one(found[1] if found[1] is not None else found[2]), value)

    def _one(self, text: str) -> str:
        name, has_default, default = text.partition(":-")
        name = re.sub(r"^(env|input|secret)[:.]", "", name)
        if name in self._supplied:
            return self.fitting(self._supplied[name])
        if has_default:
            self.notes.append(f"{ascii(name)[1:-1]} has the default of the file")
            return default
        self.need(name)
        return ""


def _from_client(source: str, entry: Any, supplied: Mapping[str, str]) -> Entry:
    """Four cases: no entry at all, a remote server, no command, a command."""
    empty, notes = _named(source, normalised(source))
    if not isinstance(entry, dict):
        return empty.refused("is not an object")
    if any(entry.get(key) for key in _URLS) or entry.get("type") in _REMOTE_TYPES:
        return empty.refused("is a remote server already: only stdio servers can be imported")
    if not entry.get("command"):
        return empty.refused("has no command")
    values = _Values(supplied)
    members, problems = _members(entry, values)
    if ignored := sorted(str(key) for key in entry if key not in _UNDERSTOOD):
        notes.append("ignored: " + ascii(", ".join(ignored))[1:-1])
    if not members["enabled"]:
        notes.append("disabled")
    found = (*empty.problems, *problems, *values.problems())
    return replace(empty, members={"name": empty.name, **members}, problems=found, notes=(*notes, *values.notes))


def _named(source: str, name: str) -> tuple[Entry, list[str]]:
    if not is_name(name):
        return Entry(source, name).refused("its name has no letter or digit that a backend's name may have"), []
    return Entry(source, name), [f"named {name}"] if name != source else []


def _members(entry: dict[str, Any], values: _Values) -> tuple[dict[str, Any], list[str]]:
    problems = [f"`{key}` is not supported" + hint for key, hint in _UNSUPPORTED.items() if entry.get(key)]
    command, args = entry["command"], entry.get("args") or []
    if isinstance(command, list):  # OpenCode
        command, args = command[0], [*command[1:], *(args if isinstance(args, list) else [args])]
    env = entry.get("env") or entry.get("environment") or {}
    if isinstance(env, dict):
        forwarded = entry.get("env_vars") or []  # Codex: names to pass on from its own environment
        names = [name for name in forwarded if isinstance(name, str)] if isinstance(forwarded, list) else []
        env = {**{name: f"${{{name}}}" for name in names}, **env}
        env, refused = _environment(env, values)
        problems += refused
    args = [values.fill(each) for each in args] if isinstance(args, list) else args
    is_enabled = entry.get("enabled", True) is not False and entry.get("disabled", False) is not True
    return {"command": values.fill(command), "args": args, "env": env, "enabled": is_enabled}, problems


_UNSUPPORTED = {
    "cwd": "; a command can change there itself: `env -C DIRECTORY COMMAND …`",
    "envFile": f"; give its variables with {ASK} and name them in `env`",
}


def _environment(env: dict[str, Any], values: _Values) -> tuple[dict[str, Any], list[str]]:
    """The variables; a supplied value comes before the file's, and is the only way to set a risky one."""
    filled, risky = {}, []
    for name, value in env.items():
        supplied = values.get(name)
        filled[name] = values.fill(value) if supplied is None else supplied
        if supplied is None and any(fnmatchcase(name.upper(), pattern) for pattern in _RISKY):
            risky.append(ascii(name)[1:-1])
    sentence = "sets {}, which changes what programs load: confirm it with " + ASK
    return filled, [sentence.format(", ".join(risky))] if risky else []


# --- the registry's server.json


def _from_registry(server: Any, supplied: Mapping[str, str]) -> Entry:
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return Entry("", "").refused("is not a server.json")
    source = server["name"]
    empty, notes = _named(source, normalised(source.rpartition("/")[2]))
    packages = [each for each in _objects(server.get("packages")) if _is_stdio(each)]
    if not packages:
        return empty.refused("has no package that speaks stdio: only stdio servers can be imported")
    package = next((each for each in packages if str(each.get("registryType")) in _RUNNERS), None)
    if package is None:
        kinds = ", ".join(sorted({ascii(str(each.get("registryType")))[1:-1] for each in packages}))
        return empty.refused(f"is packaged as {kinds}: only npm and pypi packages become a command by themselves")
    values = _Values(supplied)
    try:
        command, args = _runner(package, values)
        env, problems = _environment(_inputs(package.get("environmentVariables"), values), values)
    except ValueError as error:
        return empty.refused(str(error))
    if not package.get("version"):
        notes.append("no version: whatever is newest when a process starts")
    if package.get("registryBaseUrl"):
        notes.append("fetched from the package index that is configured here, not the one it names")
    members = {"name": empty.name, "command": command, "args": args, "env": env, "enabled": True}
    found = (*empty.problems, *problems, *values.problems())
    return replace(empty, members=members, problems=found, notes=(*notes, *values.notes))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_stdio(package: dict[str, Any]) -> bool:
    transport = package.get("transport")
    return transport is None or (isinstance(transport, dict) and transport.get("type") == "stdio")


def _runner(package: dict[str, Any], values: _Values) -> tuple[str, list[str]]:
    command, own, identifier_pattern = _RUNNERS[package["registryType"]]
    identifier, version = str(package.get("identifier")), str(package.get("version") or "")
    if not identifier_pattern.fullmatch(identifier):
        raise ValueError(f"{identifier!a} is not the name of a package")
    if version and not _VERSION.fullmatch(version):
        raise ValueError(f"{version!a} is not a version")
    runtime = _arguments(package.get("runtimeArguments"), values)
    wanted = [each for each in own if each not in runtime] + runtime
    return command, [
        *wanted, f"{identifier}@{version}" if version else identifier,
        *_arguments(package.get("packageArguments"), values),
    ]  # fmt: skip


def _arguments(inputs: Any, values: _Values) -> list[str]:
    arguments = []
    for each in _objects(inputs):
        name, is_flag = str(each.get("name") or each.get("valueHint") or ""), each.get("type") == "named"
        value = _value(each, name, values)
        if is_flag and value is None and not _ASKED_FOR.intersection(each):
            arguments.append(name)  # a switch: it takes no value
        elif is_flag and value is not None:
            # With `=` where the option is long, so that no value is ever taken for an option itself.
            arguments += [f"{name}={value}"] if name.startswith("--") else [name, value]
        elif value is not None:
            arguments.append(value)
    return arguments


def _inputs(inputs: Any, values: _Values) -> dict[str, str]:
    named = ((str(each.get("name")), each) for each in _objects(inputs))
    return {name: value for name, each in named if (value := _value(each, name, values)) is not None}


def _value(described: dict[str, Any], name: str, values: _Values) -> str | None:
    """Three sources, in this order: fixed by the publisher, supplied, the default. Without: missing or left out."""
    if isinstance(described.get("value"), str):
        variables = described.get("variables")
        text: str = values.fill(described["value"])
        return _substituted(text, variables if isinstance(variables, dict) else {}, values)
    found = values.get(name)
    if found is None and isinstance(described.get("default"), str):
        found = values.fill(described["default"])
    if found is None and described.get("isRequired"):
        values.need(name)
    return found


def _substituted(text: str, variables: dict[str, Any], values: _Values) -> str:
    def one(found: re.Match[str]) -> str:
        described = variables.get(found[1])
        if not isinstance(described, dict):
            return found[0]
        # A variable has no variables of its own, says the schema.
        return values.fitting(_value({**described, "variables": None}, found[1], values) or "")

    return re.sub(r"\{([^{}]+)\}", one, text)
