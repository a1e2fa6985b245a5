"""Which of what a process asked for in vain is reported, and which entry of `sandbox` is proposed for it."""

import json
import time
from typing import Any

import pytest

from app.backends.checks._missed import Asked, Findings, Missed, findings, reaching_out
from app.domain import BackendSpec, Sandbox
from app.domain.resources.backends import AllowList


def log(*entries: Any) -> bytes:
    """What a watcher writes down: an object when something is first missed, later its index."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in entries)


def file(path: str, access: str = "read", *, is_directory: bool = False) -> dict[str, Any]:
    return {"kind": "file", "what": path, "access": access, "is_directory": is_directory}


def address(what: str, **more: Any) -> dict[str, Any]:
    return {"kind": "address", "what": what, **more}


def closed(path: str, access: str = "read") -> dict[str, Any]:
    return {**file(path, access, is_directory=True), "uid": 60123}


def found(*entries: Any, args: tuple[str, ...] = (), stderr: tuple[str, ...] = (), **options: Any) -> list[Missed]:
    sandbox = Sandbox(network=options.pop("network", "none"), write=options.pop("write", ()))
    spec = BackendSpec("acme", "files", options.pop("command", "server"), args, sandbox=sandbox)
    has_failed = options.pop("has_failed", True)
    return list(findings(log(*entries), spec, stderr, Asked(**options), has_failed=has_failed).missed)


def proposals(missed: list[Missed]) -> list[tuple[str, Any]]:
    """Each that has no entry, or one of the network, says why or what it opens."""
    assert all(each.note for each in missed if each.proposal is None or each.proposal.get("network") == "host")
    return [(each.what, each.proposal) for each in missed]


def paths(missed: list[Missed]) -> list[str]:
    return [each.what for each in missed]


def test_a_directory_that_the_arguments_name_is_proposed_as_it_is():
    missed = found(file("/srv/repository", is_directory=True), 0, args=("--repository", "/srv/repository"))
    assert missed == [Missed("file", "/srv/repository", "read", 2, {"read": ["/srv/repository"]})]


@pytest.mark.parametrize(
    "args", [("--db=/srv/notes/data.db",), ("sqlite:////srv/notes/data.db",), ("/srv/notes/data.db?mode=ro",)]
)
def test_whoever_writes_a_file_gets_its_directory_because_a_journal_is_beside_it(args):
    missed = found(file("/srv/notes/data.db", "write"), args=args)
    assert missed[0].proposal == {"write": ["/srv/notes"]}


def test_what_the_registration_or_stderr_names_is_reported_and_nothing_else():
    entries = [
        file("/opt/probed/a"),
        file("/srv/data", is_directory=True),
        file("/opt/probed/b"),
        file("/etc/app.conf"),
    ]
    stderr = ("cannot read /etc/app.conf: no such file",)
    assert paths(found(*entries, args=("/srv/data",), stderr=stderr)) == ["/etc/app.conf", "/srv/data"]
    assert paths(found(*entries, args=("/srv/database", "/srv/data/x"), stderr=("/etc/app.confirm",))) == [
        "/etc/app.conf", "/opt/probed/b", "/srv/data",
    ]  # fmt: skip


def test_a_file_below_a_directory_of_which_it_has_its_own_counts_if_the_registration_names_it():
    hidden = {**file("/tmp/shared/data"), "is_hidden": True}
    assert paths(found(hidden, args=("/tmp/shared/data",))) == ["/tmp/shared/data"]
    assert found(hidden, stderr=("/tmp/shared/data",)) == []


def test_if_nobody_names_one_the_last_files_before_a_failure_are_reported():
    entries = [file(f"/opt/{name}/x") for name in "abcd"]
    assert paths(found(*entries, 0)) == ["/opt/a/x", "/opt/d/x", "/opt/c/x"]
    assert found(*entries, has_failed=False) == []


def test_a_denied_system_call_is_reported_after_a_failure_without_a_proposal():
    call = {"kind": "system call", "what": "mount"}
    assert proposals(found(call, 0)) == [("mount", None)]
    assert found(call, has_failed=False) == []


@pytest.mark.parametrize(
    ("call", "way"), [("unshare", "`--no-sandbox`"), ("clone", "`--no-sandbox`"), ("ptrace", "off")]
)
def test_a_denied_system_call_has_the_way_out_that_there_is(call, way):
    (missed,) = found({"kind": "system call", "what": call})
    assert way in str(missed.note)


def test_a_network_that_is_denied_as_a_whole_is_an_unknown_address_and_no_entry_is_known_to_help():
    call = {"kind": "system call", "what": "socket(AF_INET)"}
    missed = found(call, has_failed=False)
    assert proposals(missed) == [("unknown (it may not even make a socket)", None)]


@pytest.mark.parametrize(
    ("tool", "reaches"),
    [
        ({"annotations": {"openWorldHint": True}}, True),
        ({"inputSchema": {"properties": {"page": {"type": "string", "format": "uri"}}}}, True),
        ({"inputSchema": {"properties": {"url": {"type": "string"}}}}, True),
        ({"annotations": {"openWorldHint": False}, "inputSchema": {"properties": {"url": {}}}}, False),
        ({"inputSchema": {"properties": {"path": {"type": "string"}}}}, False),
        ({"annotations": "x", "inputSchema": []}, False),
        ({"inputSchema": {"properties": {"x": 1}}}, False),
    ],
)
def test_a_tool_reaches_out_if_it_says_so_or_takes_a_url(tool, reaches):
    assert reaching_out([{"name": "fetch", **tool}, "no tool", {}]) == (["fetch"] if reaches else [])


def test_a_network_that_tools_seem_to_need_is_proposed_where_there_is_none():
    asked = found(has_failed=False, reaching=["fetch", "search"])
    assert proposals(asked) == [("unknown (what these tools ask for: fetch, search)", {"network": "web"})]
    assert "Node before 22.21" in str(asked[0].note)
    assert found(has_failed=False, reaching=["fetch"], network="web") == []
    assert paths(found(address("127.0.0.1:5432"), reaching=["fetch"])) == ["127.0.0.1:5432"]


def test_what_the_registration_names_is_proposed_before_a_call_asks_for_it():
    """A check calls no tool, and many clients connect when they are first used."""
    args = ("redis://localhost:6379", "--api=https://api.example.com/v1", "http://169.254.169.254/")
    missed = found(has_failed=False, args=args, reaching=["fetch"])
    assert proposals(missed) == [
        (each, {"network": {"allow": [each]}}) for each in ("localhost:6379", "api.example.com:443")
    ]
    assert [each.count for each in missed] == [0, 0]
    assert "calls no tool" in str(missed[0].note)
    assert found(args=args) == []  # it has failed of something else
    assert paths(found(has_failed=False, args=args, network="web")) == ["localhost:6379"]
    assert paths(found(has_failed=False, args=("http://10.0.0.7",), network="web")) == ["10.0.0.7:80"]
    assert found(has_failed=False, args=args, network="host") == []
    allowed = AllowList(("localhost:6379", "api.example.com:443"))
    assert found(has_failed=False, args=args, network=allowed) == []
    network = AllowList(("127.0.0.0/8:6379",))
    assert found(has_failed=False, args=("redis://127.0.0.1:6379",), network=network) == []


@pytest.mark.parametrize("asked", ["169.254.169.254:80", "10.0.0.7:443"])
def test_so_is_it_to_a_program_that_has_asked_for_something_else_by_then(asked):
    """Such as its cloud, or for a newer version of itself."""
    missed = found(address(asked), has_failed=False, args=("redis://localhost:6379",))
    assert paths(missed) == [asked, "localhost:6379"]
    missed = found(address(asked), has_failed=False, reaching=["fetch"])
    assert len(missed) == (2 if asked.startswith("169.254.") else 1)


def test_what_modes_close_is_reported_with_the_user_and_no_entry_would_open_it():
    missed = found(closed("/srv/notes", "write"), 0, write=("/srv/notes",), has_failed=False)
    assert missed == [Missed("file", "/srv/notes", "write", 2, None, 60123)]
    assert paths(found(closed("/srv/notes/a"), write=("/srv/notes",), has_failed=False)) == ["/srv/notes/a"]
    assert paths(found(closed("/srv/notes"), stderr=("cannot read /srv/notes",))) == ["/srv/notes"]
    assert found(closed("/srv/notes"), write=("/srv/note",), has_failed=False) == []
    assert paths(found(closed("/opt/probed"))) == ["/opt/probed"]  # the last before a failure


def test_a_closed_directory_is_reported_beside_what_is_missed_in_it():
    missed = found(closed("/srv/notes", "write"), closed("/srv/notes/a"), write=("/srv/notes",))
    assert sorted(paths(missed)) == ["/srv/notes", "/srv/notes/a"]


def test_directories_on_the_way_are_not_reported():
    """node looks at each to resolve links."""
    way = [file("/srv", is_directory=True), file("/srv/data", is_directory=True)]
    assert paths(found(*way, args=("/srv/data",))) == ["/srv/data"]
    assert paths(found(*way)) == ["/srv/data"]


def made(*steps: str) -> list[dict[str, Any]]:
    return [file(each, "write", is_directory=True) for each in steps]


def looked(*steps: str) -> list[dict[str, Any]]:
    return [file(each, is_directory=True) for each in steps]


@pytest.mark.parametrize(
    "asked",
    [
        [*looked("/srv/a/data", "/srv/a", "/srv"), *made("/srv")],  # os.makedirs, and Go
        [{**file("/srv/a/data/sub", "write"), "is_new": True}, *made("/srv/a/data", "/srv/a", "/srv")],  # Node, pathlib
        made("/srv/a/data", "/srv/a", "/srv"),
        [*made("/srv/a/data", "/srv/a"), file("/srv/a/other.conf")],  # something else shows /srv
        [*looked("/srv/b", "/srv/a/data", "/srv/a", "/srv"), *made("/srv")],
    ],
)
def test_who_makes_directories_up_to_one_that_it_sees_wants_to_write_the_deepest(asked):
    last = asked[-1]["what"] if asked[-1]["access"] == "write" else "/srv/a"
    for stderr in ((f"Read-only file system: '{last}'",), ()):
        missed = [each for each in found(*asked, stderr=stderr) if each.access == "write"]
        assert [each.proposal for each in missed] == [{"write": ["/srv/a/data"]}]
        assert "/srv" not in paths(missed)


def test_a_directory_to_make_that_the_registration_names_is_proposed_itself():
    asked = [*made("/srv/a", "/srv"), *looked("/srv/a/cache")]
    assert found(*asked, args=("/srv/a",), stderr=("'/srv'",))[0].proposal == {"write": ["/srv/a"]}


def test_a_directory_of_many_programs_is_named_once_and_with_the_reason():
    for first in ((), made("/")):  # as `mkdir -p` does
        missed = found(*first, *looked("/srv"), *made("/srv"), stderr=("Read-only file system: '/srv'",))
        assert [(each.what, each.access) for each in missed] == [("/srv", "write")]
    assert "Make what the program needs in it" in str(missed[0].note)


def test_what_is_not_there_gets_an_entry_only_by_its_directory():
    """An entry that names nothing keeps the backend from starting."""
    new = {"is_new": True}
    assert found({**file("/srv/notes/a", "write"), **new})[0].proposal == {"write": ["/srv/notes"]}
    for path in ("/var/log/a.log", "/srv/new"):
        missed = found({**file(path, "write"), **new}, stderr=(path,))
        assert proposals(missed) == [(path, None)]
        assert "Make it first" in str(missed[0].note)
    assert found(file("/var/log/old.log", "write"))[0].proposal == {"write": ["/var/log/old.log"]}


def test_files_of_one_directory_are_one_entry():
    missed = found(file("/opt/app/a"), file("/opt/app/b"), file("/opt/app/b"), has_failed=True)
    assert missed == [Missed("file", "/opt/app/b", "read", 3, {"read": ["/opt/app"]})]


@pytest.mark.parametrize(
    ("path", "is_directory", "proposal"),
    [
        ("/etc/app.conf", False, {"read": ["/etc/app.conf"]}),
        ("/root/data.json", False, {"read": ["/root/data.json"]}),
        ("/home/ada/data.json", False, {"read": ["/home/ada/data.json"]}),
        ("/usr/share/app/x", False, {"read": ["/usr/share/app"]}),
        ("/home/ada/project", True, {"read": ["/home/ada/project"]}),
        ("/", True, None),
        ("/root", True, None),
        ("/home/ada", True, None),
        ("/etc", True, None),
        ("/etc/shadow", False, None),
        ("/home/ada/.ssh/id_ed25519", False, None),
        ("/root/.aws/credentials", False, None),
    ],
)
def test_the_narrowest_directory_is_proposed_and_never_one_that_is_shared_or_secret(path, is_directory, proposal):
    assert found(file(path, is_directory=is_directory))[0].proposal == proposal


@pytest.mark.parametrize(
    "what", ["93.184.215.14:443", "[2606:2800:21f::1]:80", "93.184.215.14:5432", "127.0.0.1:443", "10.0.0.1:80"]
)
@pytest.mark.parametrize("network", ["none", "web", AllowList(("db.internal:5432",))])
def test_the_very_address_and_port_are_proposed_whoever_was_asked(what, network):
    for has_proxy in (False, True):
        missed = found(address(what), network=network, has_failed=False, has_proxy=has_proxy)
        assert proposals(missed) == [(what, {"network": {"allow": [what]}})]
    assert found(address(what), network="host", has_failed=False)[0].proposal is None


@pytest.mark.parametrize(
    "what", ["169.254.169.254:80", "168.63.129.16:80", "100.100.100.200:80", "[fd00:ec2::254]:80", "[fe80::1]:80"]
)
def test_what_gives_credentials_of_the_machine_away_is_not_proposed(what):
    for network in ("none", "web"):
        missed = found(address(what), has_failed=False, network=network, has_proxy=True, refused=[(what, "address")])
        assert proposals(missed) == [(what, None)]


def test_what_no_entry_can_name_is_said():
    assert proposals(found(address("224.0.0.1:80"), has_failed=False)) == [("224.0.0.1:80", None)]


def test_localhost_is_proposed_to_who_tries_both_of_its_addresses():
    missed = found(address("[::1]:5432"), address("127.0.0.1:5432"), 0, address("127.0.0.1:6379"), has_failed=False)
    assert proposals(missed) == [
        ("127.0.0.1:6379", {"network": {"allow": ["127.0.0.1:6379"]}}),
        ("localhost:5432", {"network": {"allow": ["localhost:5432"]}}),
    ]
    assert missed[1].count == 3


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("postgresql://u:p@db.internal/app",), ["db.internal:5432"]),
        (("--url=https://api.example.com/v1", "-v"), ["api.example.com:443"]),
        (("--broker", "MQ.corp:5672"), ["mq.corp:5672"]),
        (("notes.txt", "10:30", "a@b.example"), []),
    ],
)
def test_who_resolves_a_name_may_reach_the_names_of_its_registration(args, named):
    missed = found(address("names (DNS)"), args=args, has_failed=False, has_proxy=True)
    expected: list[tuple[str, Any]] = [(each, {"network": {"allow": [each]}}) for each in named]
    assert proposals(missed) == (expected or [("names (DNS)", None)])
    missed = found(address("names (DNS)"), args=("postgresql://10.0.0.7/app",), has_failed=False, has_proxy=True)
    assert paths(missed) == ["names (DNS)", "10.0.0.7:5432"]  # no name was resolved for it


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("  [cause]: Error: getaddrinfo EAI_AGAIN API.example.com", "api.example.com:443"),
        ("Error: getaddrinfo ENOTFOUND db.internal db.internal:5432", "db.internal:5432"),
        (
            "NameResolutionError(\"<urllib3.Connection>: Failed to resolve 'api.example.com' ([Errno -3])\")",
            "api.example.com:443",
        ),
        ("dial tcp: lookup api.example.com on 127.0.0.1:53: read udp", "api.example.com:443"),
        ("dial tcp: lookup api.example.com: no such host", "api.example.com:443"),
    ],
)
def test_who_names_what_it_cannot_resolve_may_reach_that(line, named):
    missed = found(address("names (DNS)"), stderr=("TypeError: fetch failed", line), has_proxy=True)
    assert proposals(missed) == [(named, {"network": {"allow": [named]}})]
    allowed = AllowList((named,), web=True)
    assert proposals(found(address("names (DNS)"), stderr=(line,), network=allowed)) == [("names (DNS)", None)]
    assert proposals(found(address("names (DNS)"), stderr=(line,))) == [("names (DNS)", {"network": "web"})]


def test_what_calls_were_denied_is_named_and_never_added_unasked():
    """A client can have a tool ask for anything."""
    missed = found(
        has_failed=False, in_calls=("api.example.com", "10.0.0.7:5432", "169.254.169.254:80", "fetch failed")
    )
    places = ("api.example.com:443", "10.0.0.7:5432")
    assert proposals(missed) == [(each, None) for each in places]
    assert all("network.allow" in str(each.note) for each in missed)
    assert paths(found(has_failed=False, in_calls=places, network=AllowList(places[:1]))) == [places[1]]
    (unnamed,) = found(has_failed=False, in_calls=("fetch failed",))
    assert proposals([unnamed]) == [("unknown (a call says: fetch failed)", None)]
    assert found(has_failed=False, in_calls=("fetch failed",), network="web") == []


def test_who_may_make_no_socket_may_reach_what_its_registration_names():
    calls = [{"kind": "system call", "what": f"socket({family})"} for family in ("AF_INET", "AF_INET6")]
    missed = found(*calls, args=("postgresql://localhost/app",), has_failed=False)
    assert proposals(missed) == [("localhost:5432", {"network": {"allow": ["localhost:5432"]}})]


def test_names_that_nobody_names_are_the_web_s_or_nothing_is_known():
    names = address("names (DNS)")
    assert proposals(found(names, has_failed=False)) == [("names (DNS)", {"network": "web"})]
    assert proposals(found(names, has_failed=False, network="web")) == [("names (DNS)", None)]


@pytest.mark.parametrize(
    ("destination", "reason", "proposed"),
    [
        ("example.com:443", "rule", "example.com:443"),
        ("example.com:5432", "rule", "example.com:5432"),
        ("93.184.215.14:80", "rule", "93.184.215.14:80"),
        ("[2606:2800:21f::1]:443", "rule", "[2606:2800:21f::1]:443"),
        ("10.0.0.1:443", "rule", "10.0.0.1:443"),
        ("db.example.com:443", "address", None),
        ("db.internal:443", "address", "db.internal:443"),
        ("example.com:22", "port", "example.com:22"),
        ("169.254.169.254:80", "rule", None),
    ],
)
def test_what_is_asked_of_the_proxy_in_vain_is_proposed_as_it_was_asked(destination, reason, proposed):
    missed = found(has_failed=False, has_proxy=True, refused=[(destination, reason)] * 2)
    entry = proposed and {"network": {"allow": [proposed]}}
    assert proposals(missed) == [(destination, entry)]
    assert missed[0].count == 2
    assert found(has_failed=False, has_proxy=True, refused=[("gone.example:443", "name"), ("a.b:80", "timeout")]) == []


def test_what_is_allowed_and_refused_is_never_reached():
    """It is the gateway's own: the same entry once more would not help."""
    network = AllowList(("127.0.0.0/8:6379",))
    missed = found(has_failed=False, network=network, refused=[("127.0.0.1:6379", "address")])
    assert proposals(missed) == [("127.0.0.1:6379", None)]


def test_of_an_address_at_which_nobody_listens_it_is_said():
    (missed,) = found(address("127.0.0.1:5432", is_heard=False))
    assert missed.proposal is None
    assert str(missed.note).startswith("Nothing listens there on this node now")
    both = address("[::1]:5432", is_heard=False)
    (missed,) = found(address("127.0.0.1:5432", is_heard=False), both)
    assert (missed.what, missed.proposal, missed.count) == ("localhost:5432", None, 2)
    (missed,) = found(address("127.0.0.1:5432"), both)
    assert (missed.what, missed.proposal) == ("localhost:5432", {"network": {"allow": ["localhost:5432"]}})


@pytest.mark.parametrize("path", ["/run/postgresql/.s.PGSQL.5432", "/var/run/docker.sock", "/proc/1/environ"])
def test_no_entry_is_proposed_that_every_sandbox_refuses(path):
    assert proposals(found(file(path), stderr=(path,))) == [(path, None)]


def test_no_entry_is_proposed_that_contains_what_no_sandbox_opens():
    """The gateway's own data, for one."""
    for path in ("/srv/gateway/data/x", "/srv/gateway"):
        missed = found(file(path, is_directory=True), stderr=(path,), forbidden=("/srv/gateway/data",))
        assert proposals(missed) == [(path, None)]
    assert found(file("/srv/other"), stderr=("/srv/other",), forbidden=("/srv/gateway/data",))[0].proposal


@pytest.mark.parametrize("command", ["/usr/bin/node", "npx", "/srv/node_modules/.bin/server"])
def test_no_network_is_guessed_for_tools_that_node_runs(command):
    """Whether it uses the proxy depends on its version."""
    missed = found(has_failed=False, reaching=["fetch"], command=command)
    assert [each.proposal for each in missed] == [None]
    assert "Node before 22.21" in str(missed[0].note)


def test_a_report_has_at_most_ten_and_the_last_first():
    missed = found(*(address(f"192.0.2.{number}:9") for number in range(20)))
    assert paths(missed) == [f"192.0.2.{number}:9" for number in range(19, 9, -1)]


def test_why_a_process_could_not_be_watched_is_said_and_half_a_line_ignored():
    spec = BackendSpec("acme", "files", "server")
    written = log({"kind": "unwatched", "what": "the kernel refuses"}) + b'{"kind": "fi'
    assert findings(written, spec, (), has_failed=True) == Findings((), "the kernel refuses")
    assert findings(b"", spec, (), has_failed=True) == Findings()


def test_a_path_that_is_no_utf_8_can_be_answered_and_is_not_proposed():
    missed = found(file("/srv/\udcff\udcfe"), has_failed=True)
    assert missed == [Missed("file", "/srv/\\xff\\xfe", "read", 1, None)]
    assert "".join(paths(missed)).encode()


def test_thousands_of_files_that_stderr_names_hold_up_nobody():
    """The event loop waits for this: it took nine seconds."""
    named = [f"/etc/{number}" for number in range(3000)]
    began = time.process_time()
    missed = found(*map(file, named), *[0] * 60_000, stderr=(" ".join(named), "/etc/" * 8000))
    assert len(missed) == 10
    assert missed[0] == Missed("file", "/etc/0", "read", 60_001, {"read": ["/etc/0"]})
    assert time.process_time() - began < 1


def test_who_does_not_trust_a_certificate_has_found_the_server():
    """So the look-up of its name is not what it misses."""
    names = address("names (DNS)")
    assert paths(found(names, stderr=("getaddrinfo failed",))) == ["names (DNS)"]
    assert found(names, stderr=("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",)) == []
