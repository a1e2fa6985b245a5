"""Which of what a process asked for in vain is reported, and which entry of `sandbox` is proposed for it."""

import json
import time
from typing import Any

import pytest

from app.backends.checks.missed import Findings, Missed, findings, reaching_out
from app.domain import BackendSpec, Sandbox


def log(*entries: Any) -> bytes:
    """What a watcher writes down: an object when something is first missed, later its index."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in entries)


def file(path: str, access: str = "read", *, is_directory: bool = False) -> dict[str, Any]:
    return {"kind": "file", "what": path, "access": access, "is_directory": is_directory}


def address(what: str) -> dict[str, Any]:
    return {"kind": "address", "what": what}


def closed(path: str, access: str = "read") -> dict[str, Any]:
    return {**file(path, access, is_directory=True), "uid": 60123}


def found(*entries: Any, args: tuple[str, ...] = (), stderr: tuple[str, ...] = (), **options: Any) -> list[Missed]:
    sandbox = Sandbox(network=options.pop("network", "none"), write=options.pop("write", ()))
    spec = BackendSpec("acme", "files", "server", args, sandbox=sandbox)
    return list(findings(log(*entries), spec, stderr, **{"has_failed": True, **options}).missed)


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
    assert found(call, 0) == [Missed("system call", "mount", None, 2, None)]
    assert found(call, has_failed=False) == []


def test_a_network_that_is_denied_as_a_whole_is_an_unknown_address():
    call = {"kind": "system call", "what": "socket(AF_INET)"}
    missed = found(call, has_failed=False)
    assert missed == [Missed("address", "unknown (it may not even make a socket)", None, 1, {"network": "web"})]


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
    assert asked == [
        Missed("address", "unknown (what these tools ask for: fetch, search)", None, 2, {"network": "web"})
    ]
    assert found(has_failed=False, reaching=["fetch"], network="web") == []
    assert paths(found(address("127.0.0.1:5432"), reaching=["fetch"])) == ["127.0.0.1:5432"]


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
    ("what", "network", "proposed"),
    [
        ("93.184.215.14:443", "none", "web"),
        ("[2606:2800:21f::1]:80", "none", "web"),
        ("93.184.215.14:443", "web", "host"),  # it does not use the proxy
        ("93.184.215.14:5432", "none", "host"),
        ("127.0.0.1:443", "none", "host"),
        ("10.0.0.1:80", "web", "host"),
        ("names (DNS)", "none", "web"),
        ("names (DNS)", "web", None),
        ("169.254.169.254:80", "none", None),
    ],
)
def test_the_narrowest_network_is_proposed_and_none_for_the_machine_s_credentials(what, network, proposed):
    missed = found(address(what), network=network, has_failed=False)
    assert missed == [Missed("address", what, None, 1, proposed and {"network": proposed})]


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
