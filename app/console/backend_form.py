"""The form of a backend: which fields stand where, in which words. Their kinds follow from the declaration; a member
that nobody has placed here stands at the end, under its own name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from app.domain import BackendSpec
from app.domain.resources.members import DeclaredMember, bare, declared_members, is_declared, sent, without_none

_ELSEWHERE = ("name", "enabled", "reason")  # members that this form has not


@dataclass(frozen=True, slots=True)
class Field:
    """How a member is asked for. `helps`: of a new backend, and of one that exists, if that is another. `kind`: as
    `data-as` of `static/page.js`, `choice`, or `block`, a text of several lines."""

    name: str
    words: str
    helps: tuple[str, ...] = ()
    kind: str = "text"
    choices: tuple[str, ...] = ()

    def help(self, *, is_new: bool) -> str:
        """More words."""
        return (self.helps or ("",))[0 if is_new else -1]

    def now(self, about: Mapping[str, Any] | None) -> Any:
        """Its value in an answer of the REST API; None: there is none."""
        value: Any = about
        for name in self.name.split("."):
            value = None if value is None else value[name]
        if self.kind == "network" and isinstance(value, Mapping):
            return "\n".join([*value["allow"], *(["web"] if value["web"] else [])])
        return str(value).lower() if self.kind == "flag" and value is not None else value


_STAYS = ": *** stands for one that stays"
_COMMAND = (
    ("command", "Command", "a program on the nodes; leave it empty for a server that is reached by URL",
     "a program on the nodes"),
    ("args", "Arguments", "one in each line"),
    ("env", "Environment", "NAME=value in each line; values are not shown again",
     f"NAME=value in each line; values are not shown again{_STAYS}"),
    ("sandbox.network", "Network of its processes",
     "none, web or host; or what it reaches: HOST:PORT in each line, and web in one of them for that besides"),
    ("warm", "Warm processes", "a number; or auto: as many as the arrivals of the last hours ask for"),
    ("max_processes", "Processes at most"),
)  # fmt: skip
_PROCESSES = (
    ("cwd", "Working directory", "absolute, or below the process's home, which is the default"),
    ("isolation", "Isolation", "shared: for servers without state; sessions share processes"),
    ("broadcast", "Messages of a shared process that belong to no call", "true: they go to all sessions"),
    ("state", "Home of its processes", "keep: each principal has one that lasts"),
    ("start", "Start", "fork, auto: forks of a template, for servers in Python"),
    ("sandbox.mode", "Sandbox"),
    ("sandbox.require", "What it requires",
     "with require: one of files, network, memory, pids, processes in each line; empty: all"),
    ("sandbox.read", "May read besides", "an absolute path in each line"),
    ("sandbox.write", "May change besides", "an absolute path in each line"),
    *(
        (f"limits.{name}", words, "empty: the default", "empty: no limit")
        for name, words in (
            ("memory_mb", "Memory of a process (MiB)"), ("pids", "Processes and threads of one"),
            ("cpu", "Cores of one"), ("files", "Open files of one"), ("disk_mb", "Disk of one (MiB)"),
        )
    ),
)  # fmt: skip
_URL = (
    ("url", "URL", "of a server elsewhere"),
    ("openapi", "Document of OpenAPI",
     "of an HTTP API: its address, or its text. Its operations become tools; without URL, where the document says",
     "another document, or its address to have it read again"),
    ("transport", "Transport", "of a server of MCP"),
    ("headers", "Headers", "Name=value in each line; sealed when they are stored, for a URL",
     f"Name=value in each line; sealed when they are stored{_STAYS}"),
)  # fmt: skip
_CONNECT = (
    ("connect.proxy", "Proxy", "http://HOST:PORT or https://HOST:PORT; it resolves the server's name"),
    ("connect.proxy_auth", "Its name and password", "NAME:PASSWORD; sealed when they are stored",
     "NAME:PASSWORD; sealed when they are stored: *** stays"),
    ("connect.ca", "Certificates of its authority", "PEM; only these are believed then; empty: those of the machine"),
    ("connect.certificate", "Certificate of the gateway", "PEM; for a server that wants one of its clients"),
    ("connect.key", "Its key", "PEM, not encrypted; sealed when it is stored",
     "PEM, not encrypted; sealed when it is stored: *** stays"),
)  # fmt: skip
_SESSIONS = (
    ("recovery", "When a process ends",
     "end: its sessions end; respawn: they get another process, for servers without state"),
    ("calls_per_session", "Calls of a session at once"),
    ("timeouts.initialize_s", "initialize is answered within (s)"),
    ("timeouts.call_s", "A call is answered within (s)"),
    ("timeouts.idle_s", "An idle session ends after (s)"),
    ("timeouts.absolute_s", "A session ends after (s)"),
    ("timeouts.reclaim_idle_s", "An idle session may make room after (s)"),
    ("timeouts.park_s", "An idle session is parked or frozen after (s)", "respawn: parked, end: frozen; empty: never"),
)  # fmt: skip
_PINS = (
    ("pin", "Pins", "what becomes of tools that nobody has approved"),
    ("pin_minor", "Harmless edits of an approved tool"),
)
_TOOLS = (
    ("include", "Only these", "a name or a pattern in each line; empty: all"),
    ("exclude", "Not these", "likewise"),
    ("rename", "Other names", 'a JSON object: {"its name": "the name that is shown"}'),
    (
        "access",
        "Who may use what",
        'a JSON list: [{"who": {"group": "analysts"}, "tools": ["query", "list_*"]}]; empty: everybody, everything',
    ),
    ("describe", "Other descriptions", 'a JSON object: {"its name": "what is said of it"}'),
)
_PLACED = {
    "command": _COMMAND, "processes": _PROCESSES, "url": _URL, "connect": _CONNECT, "sessions": _SESSIONS,
    "pins": _PINS, "tools": _TOOLS,
}  # fmt: skip
_KINDS = {
    "openapi": "document", "env": "pairs", "headers": "pairs", "url": "url", "warm": "number-or-word",
    "access": "json", "sandbox.network": "network",
    "connect.ca": "document", "connect.certificate": "document", "connect.key": "document",
}  # fmt: skip


def groups() -> dict[str, list[Field]]:
    """The fields of each part of the form."""
    members = dict(_members("", declared_members(BackendSpec)))
    placed = {part: [_field(members.pop(row[0]), *row) for row in rows] for part, rows in _PLACED.items()}
    placed["processes"] += [_field(each, name, each.name.replace("_", " ")) for name, each in members.items()]
    return placed


def _members(above: str, declared: tuple[DeclaredMember, ...]) -> Iterator[tuple[str, DeclaredMember]]:
    for each in sent(declared):
        if is_declared(each.kind):
            yield from _members(f"{each.name}.", declared_members(each.kind))
        elif each.name not in _ELSEWHERE:
            yield above + each.name, each


def _field(member: DeclaredMember, name: str, words: str, *helps: str) -> Field:
    inner = without_none(bare(member.kind)[0])
    kind = bare(member.kind if inner is None else inner)[0]
    if get_origin(kind) is Literal:
        usual_first = sorted(get_args(kind), key=lambda each: each != member.default)
        return Field(name, words, helps, kind="choice", choices=tuple(usual_first))
    if kind is bool:
        return Field(
            name, words, helps, kind="flag", choices=("true", "false") if member.default else ("false", "true")
        )
    shapes = {tuple: "lines", Mapping: "json-members", dict: "json-members"}
    usual = "number" if kind in (int, float) else shapes.get(get_origin(kind), "text")
    return Field(name, words, helps, kind=_KINDS.get(name, usual))
