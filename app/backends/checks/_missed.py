"""What the sandbox of a process kept from it, and which entry of `sandbox` would give it. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import islice
from os.path import basename, dirname
from typing import Any, Literal

from app.backends.checks._registered import destinations_in, destinations_unresolved
from app.domain import BackendSpec
from app.domain.resources.destinations import LOCALHOST, is_destination, is_metadata, not_covered, parse
from app.domain.resources.fields import Unfit
from app.jail.egress.outgoing import WEB_PORTS
from app.jail.sandbox.paths import NEVER
from app.jail.sandbox.scripts import MODULES, PACKAGE_SCRIPTS
from app.processes.endings import distrusts

MOST = 10  # of a report
_LAST = 3  # so many calls, and files that nobody names, are reported after a failure
# Different things of one log that are looked at, and of one kind that are compared with each other. A hostile program
# asks for thousands and names all of them, and the node's event loop waits for this.
_LOOKED_AT, _COMPARED = 1000, 50
_NAMES = "names (DNS)"
_V6_LOOPBACK, _V4_LOOPBACK = "[::1]:", "127.0.0.1:"
_SOCKETS, _UNKNOWN = ("socket(AF_INET)", "socket(AF_INET6)"), "unknown (it may not even make a socket)"
_NAMESPACES = ("unshare", "clone", "setns", "mount", "umount2", "pivot_root")
_NODES = ("node", "nodejs", "npx", "npm", "tsx")
_URLS = ("url", "urls")  # parameters of tools
MAX_NAME = 64  # of a tool
# Directories of many programs: whoever gets one gets more than he asked for.
_is_shared = re.compile(
    r"/|/(bin|boot|dev|etc|home|lib\d*|libx32|lost\+found|media|mnt|opt|proc|root|run|sbin|snap|srv|sys|tmp|usr|var)|"
    r"/home/[^/]+|/usr/[^/]+|/usr/local/[^/]+|/var/(lib|log|cache|run|spool|tmp)|/etc/ssl|/run/user(/\d+)?"
).fullmatch
_begins, _ends = re.compile(r"(?<![\w.-])").match, re.compile(r"/?(?![\w/-]|\.\w)").match  # where a path does in a text
_is_secret = re.compile(
    r"/etc/(g?shadow|sudoers).*|/(.*/)?\.(ssh|gnupg|aws|azure|kube|docker|config/(gcloud|gh))(/.*)?|"
    r"/(.*/)?\.(netrc|pgpass|git-credentials|npmrc|pypirc|vault-token)"
).fullmatch

# What an entry opens, or why there is none.
_OPENS_ALL = (
    "`host` opens everything that this node reaches: your internal network, and the gateway's Redis and database with "
    "it."
)
_GOES_AROUND = (
    "It does not use the proxy of `network: web`, so `web` would not help. Name what it reaches in `network.allow`, as "
    f"HOST:PORT. {_OPENS_ALL}"
)
_BY_REGISTRATION = "Its registration names it; what the program asked for is not known, as it resolves no name yet."
_BY_ITS_WORDS = (
    "Its stderr names it, with the port of https where it names none. It uses no proxy, so `web` would not help."
)
_BEFORE_A_CALL = "Its registration names it; a check calls no tool, and it was not asked for yet."
# Whoever calls a tool can have it ask for any address: nothing of this is added unasked.
_IN_A_CALL = (
    "No entry is proposed: a call asked for it, perhaps as its client wished. If the tool should have it, name it in "
    "`network.allow`; 443 stands where no port was said."
)
_IF_PUBLIC = "A name leads to public addresses only, unless its entry names its network: docs/egress.md."
_NEVER_REACHED = "It is allowed, and never reached: it is the gateway's own, or another backend's."
_NAMES_ITS_NETWORK = (
    "The name leads to an address that is not public: its entry in `network.allow` has to say into which network, like "
    "db.example.com:5432@10.20.0.0/16."
)
_NOWHERE = "No entry of `allow` leads there."
# Who asks for the credentials of a cloud's machine should not get them.
_METADATA = "No entry is proposed: a cloud hands out the machine's credentials there."
_UNHEARD = (
    "Nothing listens there on this node now, and without that no entry helps: start it, and check again; or name it in "
    "`network.allow` for later."
)
_WEB_OR_HOST = (
    "Not known which entry helps: `allow` reaches what it names, as HOST:PORT, `web` public addresses on the ports 80 "
    "and 443, `host` everything that this node reaches."
)
_IF_PROXIES = (
    "A check calls no tool. `web` helps if the program uses the proxy variables, as most do; for one that does not, "
    "such as Node before 22.21, name what it reaches in `network.allow`, as HOST:PORT."
)
_NO_ENTRY = "No entry of `sandbox` allows it, short of `mode: off`."
_ITS_OWN_SANDBOX = (
    "A program makes a sandbox of its own with it, which no entry allows. A browser does without: start it with "
    "`--no-sandbox`, and the gateway's sandbox stays around it. For others there is only `mode: off`."
)
_SHARED = (
    "No entry is proposed: many programs share this directory. Make what the program needs in it, if it is not there, "
    "and name that."
)
_CREDENTIALS = "No entry is proposed: it looks like credentials."
_NOT_THERE = (
    "It is not there, an entry can name only what is, and many programs share its directory. Make it first, so that "
    "the process's user may write it, and name it in `write`."
)
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_NO_SHARED_MEMORY = (
    "In tier 1 there is none that is a process's own, and POSIX semaphores and shared memory are made in it (Python's "
    "`multiprocessing`). Tier 2 has one: `trunkline doctor`, run as the gateway's user on this node, says what it "
    "takes."
)
_NEVER_OPENED = "No sandbox opens this path, whatever `read` and `write` name."

Kind = Literal["file", "address", "system call", "limit"]


@dataclass(frozen=True, slots=True)
class Missed:
    """Something that this node has and the sandbox withheld, or a limit that was reached.

    `access`: to a file, `read` or `write`. `count`: how often it was asked for. `proposal`: what to add to the
    backend's `sandbox`, of a limit to its `limits`; None if no entry would help, or none should. `uid`: the mode of the
    file or directory keeps it from this user, as whom the process runs. `note`: what the entry opens, or why there is
    none.
    """

    kind: Kind
    what: str
    access: str | None
    count: int
    proposal: Mapping[str, Any] | None
    uid: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a process asked for besides its log: names of tools that are `reaching_out`; with `has_proxy` the proxy of
    `web` was in its variables, and `refused` what was asked of it in vain: destinations, and the reasons. `forbidden`:
    paths that no sandbox opens. `in_calls`: addresses that calls of the backend were denied, or the words about it."""

    reaching: Sequence[str] = ()
    has_proxy: bool = False
    refused: Sequence[tuple[str, str]] = ()
    forbidden: Sequence[str] = NEVER
    in_calls: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What a process missed, first what matters most. `unwatched`: why that may be incomplete."""

    missed: Sequence[Missed] = ()
    unwatched: str | None = None


def findings(
    log: bytes, spec: BackendSpec, stderr: Sequence[str], besides: Asked | None = None, *, has_failed: bool
) -> Findings:
    """From what a watcher wrote down (`spawner.wire.Missed`), and what else is known.

    Programs look for many files and try calls that they can do without. So a file counts if the registration of the
    backend or its stderr names it. If it failed, the last calls count, and the last files if none is named.
    """
    asked, besides = _read(log, has_found_server=distrusts(stderr)), besides or Asked()
    unwatched = next((str(each["what"]) for each, _ in asked if each["kind"] == "unwatched"), None)
    registered = "\n".join([*spec.args, *spec.env.values(), spec.cwd or ""])
    text = "\n".join([registered, *stderr])
    addresses, named, calls, files = _proxied(besides.refused, spec), list[Missed](), list[Missed](), list[Missed]()
    asked, meant = _without_steps(asked, registered)
    for each, count in asked:
        kind, what = each["kind"], each["what"]
        if kind == "system call" and what in _SOCKETS:
            addresses += _registered(spec, count) or [Missed("address", _UNKNOWN, None, count, None, note=_WEB_OR_HOST)]
        elif kind == "system call":
            calls.append(Missed(kind, what, None, count, None, note=_way_out(what)))
        elif kind == "address":
            addresses += _direct(spec, each, count, stderr, has_proxy=besides.has_proxy)
        elif kind == "file":
            is_hidden = each.get("is_hidden", False)
            is_named = _names(registered if is_hidden else text, what)
            if is_hidden and not is_named:
                continue
            is_named = is_named or ("uid" in each and _is_declared(what, spec))
            is_named = is_named or what == _SHARED_MEMORY or any(_names(text, step) for step in meant.get(what, ()))
            missed = _missed_file(each, count, is_named=is_named)
            opens = [path for paths in (missed.proposal or {}).values() for path in paths] or [what]
            if missed.uid is None and _are_forbidden(opens, besides.forbidden):
                note = _NO_SHARED_MEMORY if what == _SHARED_MEMORY else _NEVER_OPENED
                missed = replace(missed, proposal=None, note=note)
            (named if is_named else files).append(missed)
    addresses += _in_calls(spec, besides.in_calls)
    has_only_looked = all(each.note == _METADATA for each in addresses)  # for its cloud, as libraries for traces do
    addresses += _before_a_call(spec, besides.reaching if has_only_looked else (), has_failed=has_failed)
    reported = named[:_COMPARED] + _by_localhost(addresses[:_COMPARED])
    if has_failed:
        reported += calls[:_LAST] + ([] if named else files[:_LAST])
    return Findings(tuple(_merged(reported)[:MOST]), unwatched)


def _missed_file(each: Mapping[str, Any], count: int, *, is_named: bool) -> Missed:
    what, access = each["what"], each["access"]
    if "uid" in each:
        return Missed("file", what, access, count, None, each["uid"])
    shown = _shown(what)
    if shown != what:
        return Missed("file", shown, access, count, None)
    entry, note = _path_entry(each, is_named=is_named)
    return Missed("file", what, access, count, entry, note=note)


def _without_steps(
    asked: list[tuple[dict[str, Any], int]], registered: str
) -> tuple[list[tuple[dict[str, Any], int]], dict[str, list[str]]]:
    """Who makes a directory makes those above it that it does not see, up to one of many programs, and names only the
    last of these steps. What it wants to write is the deepest that it asked for. Also the steps to each of those."""
    files = [each for each, _ in asked if each["kind"] == "file" and "uid" not in each and "is_hidden" not in each]
    above = {parent for each in files for parent in _parents(each["what"])}
    wanted = [each for each in files if each["is_directory"] and _names(registered, each["what"])]
    named = {each["what"] for each in wanted}
    ends = [each for each in files if each["what"] not in above]
    wanted += [each for each in ends if each["is_directory"] or each["access"] == "write"]
    made = {each["what"]: None for each in files if each["is_directory"] and each["access"] == "write"}
    meant, steps = dict[str, list[str]](), set[str]()
    for step in [each for each in made if each not in named][:_COMPARED]:
        end = next((each["what"] for each in wanted if each["what"].startswith(step.rstrip("/") + "/")), None)
        if end is not None:
            meant.setdefault(end, []).append(step)
            steps.add(step)
    kept = list[tuple[dict[str, Any], int]]()
    for each, count in asked:
        is_file = each["kind"] == "file"
        if is_file and (each["what"] in steps or (each["access"] == "read" and each["what"] in made)):
            continue
        if is_file and each["what"] in meant:
            kept.append(({**each, "access": "write"}, count))
        else:
            kept.append((each, count))
    return kept, meant


def _parents(path: str) -> Iterable[str]:
    while path != "/":
        path = dirname(path)
        yield path


def _read(log: bytes, *, has_found_server: bool) -> list[tuple[dict[str, Any], int]]:
    """What was asked for and how often, last first. The last line may be incomplete. Who has found the server, and does
    not trust it, did not miss the look-up of its name."""
    entries, lines = list[dict[str, Any]](), list[int]()
    for line in log.split(b"\n")[:-1]:
        if line.isdigit():
            lines.append(int(line))
        else:
            lines.append(len(entries))
            entries.append(json.loads(line))
    counts = Counter(lines)
    last = list(islice(dict.fromkeys(reversed(lines)), _LOOKED_AT))
    return [
        (entries[index], counts[index]) for index in last if not (has_found_server and entries[index]["what"] == _NAMES)
    ]


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


def _path_entry(each: Mapping[str, Any], *, is_named: bool) -> tuple[Mapping[str, Any] | None, str | None]:
    """The entry that gives a file, or why there is none."""
    path, access, is_directory = each["what"], each["access"], each["is_directory"]
    is_new = each.get("is_new", False)
    # A program that writes a file makes others beside it: a temporary one, a journal.
    if not is_directory and (access == "write" or not is_named) and not _is_shared(dirname(path)):
        path, is_new = dirname(path), False
    if _is_secret(path):
        return None, _CREDENTIALS
    if _is_shared(path) and (is_directory or path == "/"):
        return None, _SHARED
    return (None, _NOT_THERE) if is_new else ({access: [path]}, None)


# --- the network


def _to(address: str, count: int, note: str | None = None) -> Missed:
    """With the entry that reaches this address, and nothing else."""
    return Missed("address", address, None, count, {"network": {"allow": [address]}}, note=note)


def _direct(
    spec: BackendSpec, each: Mapping[str, Any], count: int, stderr: Sequence[str], *, has_proxy: bool
) -> list[Missed]:
    """Who was asked for without a proxy; where it resolved a name, which ones its registration has, or it has named."""
    address, kind = each["what"], spec.sandbox.network_kind
    if kind == "host":
        return [Missed("address", address, None, count, None)]
    if address == _NAMES:
        registered = _registered(spec, count, only_names=True)
        if registered or not (has_proxy or spec.sandbox.has_web):
            return registered or [Missed("address", _NAMES, None, count, {"network": "web"})]
        said = [each for each in dict.fromkeys(destinations_unresolved(stderr)) if _can_be_named(each)][:_COMPARED]
        named = [_to(each, count, _BY_ITS_WORDS) for each in not_covered(said, spec.sandbox.allow)]
        return named or [Missed("address", _NAMES, None, count, None, note=_GOES_AROUND)]
    if _is_of_metadata(address):
        return [Missed("address", address, None, count, None, note=_METADATA)]
    if not _can_be_named(address):
        return [Missed("address", address, None, count, None, note=_NOWHERE)]
    if not each.get("is_heard", True):
        return [Missed("address", address, None, count, None, note=_UNHEARD)]
    return [_to(address, count)]


def _registered(spec: BackendSpec, count: int, *, only_names: bool = False) -> list[Missed]:
    """What the backend's registration names and it does not reach yet."""
    named = [each for each in dict.fromkeys(destinations_in(spec)) if _can_be_named(each)]
    found = [each for each in named if not _is_of_metadata(each) and not (only_names and _is_address(each))]
    return [_to(each, count, _BY_REGISTRATION) for each in not_covered(found[:_COMPARED], spec.sandbox.allow)]


def _before_a_call(spec: BackendSpec, reaching: Sequence[str], *, has_failed: bool) -> list[Missed]:
    """Where its registration says that a program will connect to, else the web if tools say that they reach out."""
    named = [] if has_failed or spec.sandbox.network_kind == "host" else _registered(spec, 0)
    found = [replace(each, note=_BEFORE_A_CALL) for each in named if not (spec.sandbox.has_web and _is_of_web(each))]
    if found or not reaching or spec.sandbox.network != "none":
        return found
    what = f"unknown (what these tools ask for: {', '.join(reaching)})"
    entry = None if _is_node(spec) else {"network": "web"}
    return [Missed("address", what, None, len(reaching), entry, note=_IF_PROXIES)]


def _in_calls(spec: BackendSpec, said: Sequence[str]) -> list[Missed]:
    """What calls were denied, or what they say of it."""
    places = {each: each if each.rpartition(":")[2].isdecimal() else f"{each}:443" for each in said}
    named = [each for each in places.values() if _can_be_named(each) and not _is_of_metadata(each)]
    denied = not_covered(named, spec.sandbox.allow)
    found = [Missed("address", each, None, 1, None, note=_IN_A_CALL) for each in denied]
    unnamed = [each for each, place in places.items() if not _can_be_named(place)]
    if found or not unnamed or spec.sandbox.network != "none":
        return found
    return [Missed("address", f"unknown (a call says: {unnamed[0]})", None, len(unnamed), None, note=_IF_PROXIES)]


def _is_of_web(missed: Missed) -> bool:
    """Whether `web` leads there, as far as its name says."""
    known = parse(missed.what)
    is_public = not known.is_private_name if known.name else known.network is not None and known.network.is_global
    return known.port in WEB_PORTS and is_public


def _by_localhost(addresses: Sequence[Missed]) -> list[Missed]:
    """One for each. Who asks for `localhost` tries ::1, and perhaps 127.0.0.1 then: an entry for the former would lead
    him to where nobody may listen, and one for `localhost` leads to whoever does."""
    both = {each.what.rpartition(":")[2] for each in addresses if each.what.startswith(_V6_LOOPBACK)}
    kept = dict[str, Missed]()
    for found in addresses:
        host, _, port = found.what.rpartition(":")
        each, is_either = found, port in both and f"{host}:" in (_V6_LOOPBACK, _V4_LOOPBACK)
        if is_either:
            named = f"{LOCALHOST}:{port}"
            each = replace(found, what=named) if found.proposal is None else _to(named, found.count, found.note)
        before = kept.get(each.what, replace(each, count=0))
        more = each if before.proposal is None else before
        kept[each.what] = replace(more, count=before.count + each.count)
    return list(kept.values())


def _can_be_named(address: str) -> bool:
    try:
        is_destination(address)
    except Unfit:
        return False
    return True


def _is_address(destination: str) -> bool:
    return parse(destination).network is not None


def _are_forbidden(paths: Sequence[str], forbidden: Sequence[str]) -> bool:
    """Whether no sandbox opens one of these, or something in it."""
    never = [f"{each}/" for each in (*forbidden, "/var/run")]
    return any(f"{path}/".startswith(each) or each.startswith(f"{path}/") for path in paths for each in never)


def _proxied(refused: Sequence[tuple[str, str]], spec: BackendSpec) -> list[Missed]:
    """What was asked of the proxy or of a listener, and is refused by a rule (it is not allowed, or there is no
    network) or for what it is."""
    found = list[Missed]()
    for (destination, reason), count in Counter(refused).items():
        if reason in ("rule", "address", "port"):
            found.append(_refused(_shown(destination), reason, count, spec))
    return found[::-1]


def _refused(destination: str, reason: str, count: int, spec: BackendSpec) -> Missed:
    why_not = _why_no_entry(destination, reason, spec)
    if why_not is not None:
        return Missed("address", destination, None, count, None, note=why_not)
    return _to(destination, count, _IF_PUBLIC if parse(destination).name else None)


def _why_no_entry(destination: str, reason: str, spec: BackendSpec) -> str | None:
    if _is_of_metadata(destination):
        return _METADATA
    if not _can_be_named(destination):
        return _NOWHERE
    known, is_allowed = parse(destination), not not_covered([destination], spec.sandbox.allow)
    if reason == "address" and known.name and (is_allowed or not known.is_private_name):
        return _NAMES_ITS_NETWORK
    return _NEVER_REACHED if is_allowed else None


def _is_of_metadata(destination: str) -> bool:
    try:
        return is_metadata(ip_address(destination.rpartition(":")[0].strip("[]")))
    except ValueError:
        return False


def _is_node(spec: BackendSpec) -> bool:
    """Whether Node runs it, as far as the command shows; of which only newer ones use the proxy variables."""
    words = (spec.command, *spec.args)
    return basename(spec.command) in _NODES or any(
        f"/{MODULES}/" in each or each.endswith(PACKAGE_SCRIPTS) for each in words
    )


def _way_out(call: str) -> str:
    return _ITS_OWN_SANDBOX if call in _NAMESPACES else _NO_ENTRY
