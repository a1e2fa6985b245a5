"""What others send is remembered by one tool, which counts bytes."""

import ast
from pathlib import Path
from typing import Any

import pytest

from app.text.memo import MAX_BYTES, memo

APP = Path(__file__).resolve().parents[2] / "app"
KEEPERS = {"lru_cache", "cache"}  # of functools: both count entries at most


def counted() -> tuple[Any, list[Any]]:
    """A remembered function, and what it was really called with."""
    calls: list[Any] = []

    def double(value: Any) -> Any:
        calls.append(value)
        return (value, value)

    return memo(2)(double), calls


@pytest.mark.parametrize("value", [b"", b"x" * MAX_BYTES, "x" * MAX_BYTES, None, (b"a" * 99, b"b" * 99), ()])
def test_what_is_short_is_worked_out_once(value):
    double, calls = counted()
    assert [double(value), double(value)] == [(value, value)] * 2
    assert calls == [value]


@pytest.mark.parametrize(
    "value", [b"x" * (MAX_BYTES + 1), "x" * (MAX_BYTES + 1), "\U0001f600", (b"a" * 100, b"b" * 99), (b"",) * 201, 5]
)
def test_what_is_long_or_of_another_kind_is_worked_out_each_time(value):
    double, calls = counted()
    assert [double(value), double(value)] == [(value, value)] * 2
    assert calls == [value, value]


def test_the_oldest_goes_first():
    double, calls = counted()
    for value in (b"a", b"b", b"a", b"c", b"b", b"a"):
        assert double(value) == (value, value)
    assert calls == [b"a", b"b", b"c", b"a"]


def keepers_in(source: str) -> list[int]:
    """The lines that name something of functools which keeps what it is called with, or would bring in all of it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("functools", "anyio.functools"):
            found += [node.lineno for alias in node.names if alias.name in {*KEEPERS, "*"}]
        elif isinstance(node, ast.Import):
            found += [node.lineno for alias in node.names if alias.name in ("functools", "anyio.functools")]
    return found


@pytest.mark.parametrize(
    "source", ["from functools import lru_cache", "import functools", "from functools import cache as kept"]
)
def test_a_keeper_is_found(source):
    assert keepers_in(source) == [1]


def test_nothing_else_here_keeps_what_it_was_called_with():
    found = {
        f"{path.relative_to(APP)}:{line}"
        for path in APP.rglob("*.py")
        if "functools" in (source := path.read_text())
        for line in keepers_in(source)
        if path != APP / "text/memo.py"
    }
    assert not found, "use app.text.memo.memo: functools counts entries, not bytes"


# The standard library's urlsplit keeps the last 128 texts it was given, however long they are.
PARSED_AT_START = {
    "settings/tracing.py",
    "settings/_urls.py",
    "admin/client_config/_snippets.py",
    "cli/doctor/network.py",
    "cli/doctor/tracing.py",
    "cli/connect.py",
    "cli/importing.py",
    "cli/rest.py",
    "console/cookies.py",
    "cluster/peers/_pool.py",
    "node/parts/own_parts.py",
    "node/parts/sandboxing.py",
    "node/parts/upstreams.py",
    "jail/sandbox/probes/targets.py",
    "http/transports/rest.py",
}  # settings, words of a user
BOUNDED = {
    "auth/outbound_urls.py",
    "backends/upstreams/_statuses.py",
    "domain/resources/clients.py",
}  # look at the length first
# Of proxies, which administrators give; of what npm and uv are configured to use; in a process that ends afterwards.
FEW = {
    "auth/outbound_proxy.py",
    "jail/egress/_onward.py",
    "backends/packages/registries.py",
    "protocol/openapi/_dialects.py",
}


def test_urls_that_others_send_do_not_reach_urlsplit():
    users = {str(path.relative_to(APP)) for path in APP.rglob("*.py") if "urlsplit" in path.read_text()}
    assert users <= PARSED_AT_START | BOUNDED | FEW


def test_starlettes_url_is_not_asked_for():
    """`request.url` goes through urlsplit with the path, the query and the Host of a client."""
    users = [
        f"{path.relative_to(APP)}:{node.lineno}"
        for path in APP.rglob("*.py")
        if "request.url" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == ("request", "url")
    ]
    assert not users
