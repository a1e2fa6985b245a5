"""What the sandbox of a process kept from it, and which entry of `sandbox` would give it. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import islice
from os.path import dirname
from typing import Any, Literal

from app.domain import BackendSpec

MOST = 10  # of a report
_LAST = 3  # so many calls, and files that nobody names, are reported after a failure
# Different things of one log that are looked at, and of one kind that are compared with each other. A hostile program
# asks for thousands and names all of them, and the node's event loop waits for this.
_LOOKED_AT, _COMPARED = 1000, 50
_NAMES = "names (DNS)"
_SOCKETS, _UNKNOWN = ("socket(AF_INET)", "socket(AF_INET6)"), "unknown (it may not even make a socket)"
_WEB_PORTS = (80, 443)
_URLS = ("url", "urls")  # parameters of tools
MAX_NAME = 64  # of a tool
# Directories of many programs: whoever gets one gets more than he asked for.
_is_shared = re.compile(
    r"/[^/]*|/home/[^/]+|/usr/[^/]+|/usr/local/[^/]+|/var/(lib|log|cache|run|spool|tmp)|/etc/ssl|/run/user(/\d+)?"
).fullmatch
_begins, _ends = re.compile(r"(?<![\w.-])").match, re.compile(r"/?(?![\w/-]|\.\w)").match  # where a path does in a text
_is_secret = re.compile(r"/etc/(g?shadow|sudoers).*|/(.*/)?\.(ssh|gnupg|aws|kube|docker)(/.*)?").fullmatch

Kind = Literal["file", "address", "system call"]


@dataclass(frozen=True, slots=True)
class Missed:
    """Something that this node has and the sandbox withheld.

    `access`: to a file, `read` or `write`. `count`: how often it was asked for. `proposal`: what to add to the
    backend's `sandbox`; None if no entry would help, or none should. `uid`: the mode of the file or directory keeps it
    from this user, as whom the process runs.
    """

    kind: Kind
    what: str
    access: str | None
    count: int
    proposal: Mapping[str, Any] | None
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What a process missed, first what matters most. `unwatched`: why that may be incomplete."""

    missed: Sequence[Missed] = ()
    unwatched: str | None = None


def findings(
    log: bytes, spec: BackendSpec, stderr: Iterable[str], reaching: Sequence[str] = (), *, has_failed: bool
) -> Findings:
    """From what a watcher wrote down (`spawner.wire.Missed`), and the names of tools that are `reaching_out`.

    Programs look for many files and try calls that they can do without. So a file counts if the registration of the
    backend or its stderr names it. If it failed, the last calls count, and the last files if none is named.
    """
    asked = _read(log)
    unwatched = next((str(each["what"]) for each, _ in asked if each["kind"] == "unwatched"), None)
    registered = "\n".join([*spec.args, *spec.env.values(), spec.cwd or ""])
    text = "\n".join([registered, *stderr])
    addresses, named, calls, files = list[Missed](), list[Missed](), list[Missed](), list[Missed]()
    for each, count in asked:
        kind, what = each["kind"], each["what"]
        if kind == "system call" and what in _SOCKETS:
            addresses.append(Missed("address", _UNKNOWN, None, count, {"network": "web"}))
        elif kind == "system call":
            calls.append(Missed(kind, what, None, count, None))
        elif kind == "address":
            addresses.append(Missed(kind, what, None, count, _network_entry(what, spec.sandbox.network)))
        elif kind == "file":
            is_hidden = each.get("is_hidden", False)
            is_named = _names(registered if is_hidden else text, what)
            if is_hidden and not is_named:
                continue
            if "uid" in each:
                is_named = is_named or _is_declared(what, spec)
                (named if is_named else files).append(Missed(kind, what, each["access"], count, None, each["uid"]))
                continue
            entry = _path_entry(what, each["access"], is_directory=each["is_directory"], is_named=is_named)
            shown = _shown(what)
            missed = Missed(kind, shown, each["access"], count, entry if shown == what else None)
            (named if is_named else files).append(missed)
    if reaching and not addresses and spec.sandbox.network == "none":  # a check calls no tool
        what = f"unknown (what these tools ask for: {', '.join(reaching)})"
        addresses.append(Missed("address", what, None, len(reaching), {"network": "web"}))
    reported = named[:_COMPARED] + addresses[:_COMPARED]
    if has_failed:
        reported += calls[:_LAST] + ([] if named else files[:_LAST])
    return Findings(tuple(_merged(reported)[:MOST]), unwatched)


def _read(log: bytes) -> list[tuple[dict[str, Any], int]]:
    """What was asked for and how often, last first. The last line may be incomplete."""
    entries, lines = list[dict[str, Any]](), list[int]()
    for line in log.split(b"\n")[:-1]:
        if line.isdigit():
            lines.append(int(line))
        else:
            lines.append(len(entries))
            entries.append(json.loads(line))
    counts = Counter(lines)
    return [(entries[index], counts[index]) for index in islice(dict.fromkeys(reversed(lines)), _LOOKED_AT)]


def reaching_out(tools: Iterable[object]) -> list[str]:
    """The names of these tools' definitions that say that they reach other machines, or take a URL."""
    return [str(tool.get("name"))[:MAX_NAME] for tool in tools if isinstance(tool, dict) and _reaches_out(tool)]


def _reaches_out(tool: Mapping[str, Any]) -> bool:
    """What it says of itself (`annotations.openWorldHint`) goes before what its parameters look like."""
    notes, schema = (tool.get(name) for name in ("annotations", "inputSchema"))
    says = notes.get("openWorldHint") if isinstance(notes, dict) else None
    if isinstance(says, bool):
        return says
    parameters = schema.get("properties") if isinstance(schema, dict) else None
    return isinstance(parameters, dict) and any(
        name in _URLS or (isinstance(each, dict) and each.get("format") == "uri") for name, each in parameters.items()
    )


def _names(text: str, path: str) -> bool:
    """Whether a text names this path, and not one below or beside it."""
    at = text.find(path)
    while at >= 0:
        if _begins(text, at) and _ends(text, at + len(path)):
            return True
        at = text.find(path, at + 1)
    return False


def _shown(path: str) -> str:
    """The path with bytes that are no UTF-8 escaped: no answer could have them."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _merged(found: Sequence[Missed]) -> list[Missed]:
    """One for what the same entry would give, the first; none for directories on the way to another one."""
    kept: list[Missed] = []
    for missed in found:
        same = next((at for at, each in enumerate(kept) if _gives(each.proposal, missed)), None)
        if same is not None:
            kept[same] = replace(kept[same], count=kept[same].count + missed.count)
        elif missed.uid is not None or not any(_is_on_the_way(missed, each) for each in found):
            kept.append(missed)
    return kept


def _is_on_the_way(missed: Missed, other: Missed) -> bool:
    return missed.kind == "file" and other.what.startswith(missed.what + "/")


def _is_declared(path: str, spec: BackendSpec) -> bool:
    return any((path + "/").startswith(each.rstrip("/") + "/") for each in (*spec.sandbox.read, *spec.sandbox.write))


def _gives(proposal: Mapping[str, Any] | None, missed: Missed) -> bool:
    """Whether this entry would also give what somebody missed."""
    if proposal is None or missed.kind != "file":
        return False
    paths = [*proposal.get("write", ()), *(proposal.get("read", ()) if missed.access == "read" else ())]
    return any(missed.what == path or missed.what.startswith(path + "/") for path in paths)


def _path_entry(path: str, access: str, *, is_directory: bool, is_named: bool) -> Mapping[str, Any] | None:
    # A program that writes a file makes others beside it: a temporary one, a journal.
    if not is_directory and (access == "write" or not is_named) and not _is_shared(dirname(path)):
        path = dirname(path)
    if _is_secret(path) or (_is_shared(path) and (is_directory or path == "/")):
        return None
    return {access: [path]}


def _network_entry(address: str, network: str) -> Mapping[str, Any] | None:
    narrowest = _network(address, network)
    return None if narrowest is None else {"network": narrowest}


def _network(address: str, network: str) -> str | None:
    """The narrowest `network` that reaches this address."""
    if network == "host":
        return None
    if address == _NAMES:
        return "web" if network == "none" else None
    host, _, port = address.rpartition(":")
    ip = ip_address(host.strip("[]"))
    if ip.is_link_local:  # who asks for the credentials of a cloud's machine should not get them
        return None
    return "web" if network == "none" and ip.is_global and int(port) in _WEB_PORTS else "host"
