"""docs/openapi.json is what the code says; docs/admin-api.md names every route, and its commands work."""

import importlib
import json
import pkgutil
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import iscoroutinefunction
from pathlib import Path
from string import Template
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant

import app
from app.admin import resources
from app.admin._route import AdminRoute
from app.admin.idempotency import ONCE
from app.admin.router import PREFIX, _describe_tenant
from tests.admin.resources.test_connections import allow
from tests.admin.rig import shared_api
from tests.protocol.toolset.offers import offer, tool

ROOT = Path(app.__file__).parents[1]
GUIDE = (ROOT / "docs/admin-api.md").read_text()
DOCUMENT = shared_api().openapi()
ROUTES = {
    (method.upper(), path.removeprefix(PREFIX)) for path, methods in DOCUMENT["paths"].items() for method in methods
}
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
    if line[:4] == "api "
]


def request_of(command: str) -> tuple[str, str, str | None, dict[str, str]]:
    """Method, path, body and headers of a curl line."""
    words, method, path, body, headers = iter(shlex.split(command)[1:]), "GET", "", None, {}
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-d":
            body = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        else:
            path = word.removeprefix("$API")
    return method, path, body, headers


def test_the_document_in_the_repository_is_the_codes():
    kept = json.loads((ROOT / "docs/openapi.json").read_text())
    kept["info"]["version"] = app.__version__
    assert kept == json.loads(json.dumps(DOCUMENT)), "run scripts/openapi"
    assert kept["openapi"].startswith("3.1")


def test_the_guide_names_every_route_and_no_other():
    named = set(re.findall(r"`(GET|POST|PATCH|DELETE) (/[^`? ]*)`", GUIDE))
    of_default = {(method, path.replace("/tenants/{tenant}", "", 1)) for method, path in named if path.count("/") > 2}
    assert named <= ROUTES
    assert named | of_default >= ROUTES


def test_the_guide_has_a_command_for_every_route():
    for method, path in ROUTES:
        if path.startswith("/tenants") or path in ("/nodes", "/use", "/audit"):
            form = re.compile(re.sub(r"\\{\w+\\}", "[^/:]+", re.escape(path)))
            found = [(m, p.partition("?")[0]) for m, p, *_ in map(request_of, COMMANDS)]
            assert any(m == method and form.fullmatch(p) for m, p in found), (method, path)


@pytest.fixture(scope="module")
def routes() -> list[AdminRoute]:
    found = pkgutil.walk_packages(resources.__path__, "app.admin.resources.")
    modules = [importlib.import_module(each.name) for each in found]
    routes = [route for module in modules if hasattr(module, "router") for route in module.router.routes]
    assert len(routes) >= len({path for _, path in ROUTES}) / 2
    return routes


def test_every_route_authenticates_first_and_every_post_can_be_repeated(routes):
    for route in routes:
        assert isinstance(route, AdminRoute), route
        assert ("POST" in (route.methods or ())) is (ONCE in route.dependencies), route.path


def test_nothing_of_a_route_runs_in_a_thread(routes):
    """FastAPI calls plain functions in one, which costs more than most of them do."""

    def of(dependant: Dependant) -> Iterator[Callable[..., Any] | None]:
        yield dependant.call
        for each in dependant.dependencies:
            yield from of(each)

    called = {call for route in routes for call in of(route.dependant)}
    assert len(called) > len(routes)
    threads = {call for call in called if not (iscoroutinefunction(call) or iscoroutinefunction(type(call).__call__))}
    assert threads == set()
    assert iscoroutinefunction(_describe_tenant)


APPROVED = {"status": "approved", "fingerprint": "x", "reasons": [], "refusal": ""}


async def test_the_commands_of_the_guide_work_in_their_order(rig):
    await rig.ask("DELETE", "/api/v1/tenants/acme")
    rig.node.add_session("acme", "s1")
    rig.node.running["acme"] = [replace(each, backend="time") for each in rig.node.running["acme"]]
    rig.offers.found = {"get_current_time": APPROVED}
    rig.node.add_process("acme", "p1")
    rig.offers.known["acme", "time"] = offer("time", tools=[tool("get_current_time")])
    known = {"SESSION_ID": "s1", "PROCESS_ID": "p1"}
    for command in COMMANDS:
        method, path, body, headers = request_of(command)
        if "$CONNECTION_ID" in path and "CONNECTION_ID" not in known:
            known["CONNECTION_ID"] = (await allow(rig)).id
        content = None if body is None else Template(body).safe_substitute(known).encode()
        path = PREFIX + Template(path).substitute(known)
        answer = await rig.ask(method, path, content=content, headers=headers)
        assert answer.is_success, (command, answer.text)
        if method == "POST" and answer.content.startswith(b"{"):
            known[path.rpartition("/")[2].upper().rstrip("S") + "_ID"] = answer.json().get("id", "")
