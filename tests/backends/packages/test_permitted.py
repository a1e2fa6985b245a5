"""What a tenant's list lets its own administrators register."""

from dataclasses import replace
from typing import Any

import pytest

from app.backends.packages.permitted import is_permitted
from app.domain import BackendSpec, ProcessLimits, Sandbox, Tenant
from app.domain.resources.backends import AllowList


def spec(line: str, **members: Any) -> BackendSpec:
    command, *args = line.split()
    return BackendSpec("acme", "notes", command, args=tuple(args), **members)


def permitted(line: str, *patterns: str, **members: Any) -> bool:
    tenant = Tenant("acme", packages_allow=patterns, network_allow=("db.internal:5432",))
    return is_permitted(tenant, spec(line, **members))


@pytest.mark.parametrize(("line", "pattern"), [
    ("npx -y @acme/notes@1.0 --port 3", "npm:@acme/notes"),
    ("npx -y @acme/notes", "npm:@acme/*"),
    ("cmd /c npx notes", "npm:*"),
    ("npx notes --db=files/notes.db https://notes.example/a", "npm:*"),
    ("uvx Notes_MCP==1.0", "pypi:notes-mcp"),
    ("uvx notes-mcp[all]", "pypi:Notes.*"),
    ("docker run -i --rm -e A mcp/time:2", "oci:mcp/*"),
])  # fmt: skip
def test_what_is_listed_is_theirs(line, pattern):
    assert permitted(line, pattern)


@pytest.mark.parametrize(("line", "patterns"), [
    ("npx -y notes", ()),
    ("npx -y notes", ("npm:note", "npm:notes2", "pypi:*", "npm:Notes", "npm:*notes-*")),
    ("npx -y @acme/notes", ("npm:notes", "npm:acme/*")),
    ("npx -p notes -p evil notes", ("npm:notes",)),
    ("uvx --with evil notes", ("pypi:notes",)),
    ("npx github:acme/notes", ("npm:*",)),
    ("docker run --privileged mcp/time", ("oci:*",)),
    ("docker run -v /srv:/srv:ro mcp/time", ("oci:*",)),
    ("docker run evil.example/mcp/time", ("oci:mcp/*",)),
    ("npx -y notes /srv/notes", ("npm:*",)),
    ("npx -y notes --dir=/srv/notes", ("npm:*",)),
    ("npx -y notes ../../srv/notes", ("npm:*",)),
    ("uvx notes --db=files/../../../srv/notes.db", ("pypi:*",)),
    ("cat", ("npm:*", "pypi:*", "oci:*")),
    ("node server.js", ("npm:*",)),
])  # fmt: skip
def test_what_is_not_listed_or_no_package_is_not(line, patterns):
    assert not permitted(line, *patterns)


@pytest.mark.parametrize(("members", "is_theirs"), [
    ({"sandbox": Sandbox(network=AllowList(("db.internal:5432",)))}, True),
    ({"sandbox": Sandbox(network=AllowList(("db.internal:5433",)))}, False),
    ({"sandbox": Sandbox(network=AllowList(("db.internal:5432",), web=True))}, False),
    ({"sandbox": Sandbox(network="web")}, False),
    ({"sandbox": Sandbox(mode="off")}, False),
    ({"sandbox": Sandbox(read=("/srv",))}, False),
    ({"sandbox": Sandbox(write=("/srv",))}, False),
    ({"cwd": "/srv"}, False),
    ({"cwd": "files"}, True),
    ({"limits": ProcessLimits(memory_mb=512)}, True),
    ({"limits": ProcessLimits(memory_mb=None)}, False),
    ({"limits": replace(ProcessLimits(), cpu=1.5)}, False),
    ({"env": {"TOKEN": "s3cret"}, "state": "keep", "isolation": "session", "warm": 1}, True),
])  # fmt: skip
def test_it_asks_for_nothing_of_the_node(members, is_theirs):
    assert permitted("npx notes", "npm:notes", **members) is is_theirs
