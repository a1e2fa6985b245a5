"""Every error is an RFC 9457 problem, whoever raised it."""

import re
import threading
from types import NoneType
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from app.admin.schemas.fields import MAX_WRONG, Strict
from app.errors import BackendExited, Forbidden, GatewayError, QuotaExceeded, ShuttingDown, StorageUnavailable
from app.http.problems import MAX_ERRORS
from app.node.application import build_api
from tests.admin.rig import Rig


def is_problem(answer: Any, status: int, reason: str) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == "about:blank"
    assert (problem["status"], problem["reason"]) == (status, reason)
    return problem


def fail_with(rig: Rig, error: Exception) -> None:
    """A route that raises, in an application of this rig's own: the others' must not have it."""

    async def fail() -> None:
        raise error

    own = build_api()
    own.state = rig.app.state
    own.add_api_route("/fail", fail)
    rig.app = own


async def test_an_unknown_address_is_a_problem(untouched):
    for path in ("/nowhere", "/api/v1", "/api/v1/nothing", "/t/x"):
        is_problem(await untouched.ask("GET", path, key=""), 404, "not_found")


async def test_a_body_that_does_not_arrive_has_its_own_word(rig):
    fail_with(rig, HTTPException(408, "the body did not arrive"))
    problem = is_problem(await rig.ask("GET", "/fail", key=""), 408, "timeout")
    assert problem["detail"] == "the body did not arrive"


async def test_a_wrong_method_names_all_the_right_ones(untouched):
    for path, allow in (
        ("/api/v1/tenants", "GET, POST"),
        ("/api/v1/tenants/acme", "GET, PATCH, DELETE"),
        ("/api/v1/tenants/acme/keys/x", "GET, PATCH, DELETE"),
        ("/api/v1/backends/x", "GET, PATCH, DELETE"),
        ("/readyz", "GET"),
    ):
        answer = await untouched.ask("PUT", path, key="")
        is_problem(answer, 405, "method_not_allowed")
        assert answer.headers["Allow"] == allow


async def test_nothing_redirects(untouched):
    assert (await untouched.ask("GET", "/livez//")).status_code == 404
    assert (await untouched.ask("GET", "/api/v1/tenants/")).status_code == 404


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"1" * 5000, b'{"name": 1e999999}x'])
async def test_a_body_that_is_no_json_is_400(untouched, content):
    problem = is_problem(await untouched.ask("POST", "/api/v1/tenants", content=content), 400, "parse_error")
    assert "errors" not in problem


@pytest.mark.parametrize("content", [b"", b"null", b'"x"', b'"\\ud800"', b'{"\\ud800": 1}', b"NaN"])
async def test_json_that_is_no_object_of_ours_is_422(untouched, content):
    is_problem(await untouched.ask("POST", "/api/v1/tenants", content=content), 422, "invalid_request")


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_another_media_type_is_415_and_says_which_to_send(untouched, media_type):
    headers = {"Content-Type": media_type}
    answer = await untouched.ask("POST", "/api/v1/tenants", {"name": "x"}, headers=headers)
    problem = is_problem(answer, 415, "unsupported_media_type")
    assert "`Content-Type: application/json`" in problem["detail"]


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"]
)
async def test_json_may_have_its_other_names(untouched, media_type):
    headers = {"Content-Type": media_type}
    answer = await untouched.ask("PATCH", "/api/v1/tenants/acme", {"enabled": True}, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/api/v1/tenants", b'{"name": "one", "name": "two"}'),
        ("/api/v1/tenants/acme/keys", b'{"scopes": ["mcp:connect"], "s\\u0063opes": ["tenant:admin"]}'),
        ("/api/v1/backends", b'{"name": "x", "command": "x", "env": {"name": "1", "name": "2"}}'),
        ("/api/v1/tenants/acme/backends/echo:restart", b'{"name": 1, "name": 1}'),
    ],
)
async def test_a_repeated_member_is_refused_by_name(untouched, path, content):
    problem = is_problem(await untouched.ask("POST", path, content=content), 422, "invalid_request")
    assert re.search('"(name|scopes)" is repeated', problem["detail"])


@pytest.mark.parametrize("action", ["restart", "check"])
async def test_an_action_takes_no_body(rig, action):
    path = f"/api/v1/tenants/acme/backends/echo:{action}"
    for content in (b'{"force": true}', b"[]", b"null", b"0", b"x"):
        problem = is_problem(await rig.ask("POST", path, content=content), 422, "invalid_request")
        assert problem["detail"] == "this route takes no body; send none, or {}"
    for empty in (None, b"{}", b" { } "):
        assert (await rig.ask("POST", path, content=empty)).is_success


async def test_complaints_are_bounded_in_number_and_size(untouched):
    body = {f"{number}{'x' * 10_000}": 1 for number in range(100)}
    answer = await untouched.ask("POST", "/api/v1/tenants", body)
    problem = is_problem(answer, 422, "invalid_request")
    assert len(problem["errors"]) == MAX_ERRORS
    assert len(answer.content) < 10_000


@pytest.mark.parametrize(
    ("error", "status", "reason", "headers"),
    [
        (QuotaExceeded("keys", retry_after_s=1.2), 429, "quota_exceeded", {"Retry-After": "2"}),
        (StorageUnavailable(), 503, "storage_unavailable", {"Retry-After": "[23]"}),
        (ShuttingDown(), 503, "shutting_down", {"Retry-After": "[23]"}),
        (Forbidden(["a", "b"]), 403, "insufficient_scope",
         {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="a b"'}),
        (BackendExited(), 502, "backend_exited", {}),
        (GatewayError("odd", hint="look"), 500, "internal_error", {}),
    ],
)  # fmt: skip
async def test_our_errors_keep_reason_hint_and_headers(rig, error, status, reason, headers):
    fail_with(rig, error)
    answer = await rig.ask("GET", "/fail")
    problem = is_problem(answer, status, reason)
    assert problem.get("hint") == error.hint
    for name, pattern in headers.items():
        assert re.fullmatch(pattern, answer.headers[name])


async def test_no_error_needs_a_thread(rig, monkeypatch):
    fail_with(rig, StorageUnavailable())

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    is_problem(await rig.ask("GET", "/fail", key=""), 503, "storage_unavailable")
    is_problem(await rig.ask("GET", "/nowhere", key=""), 404, "not_found")


async def test_a_bug_is_500_and_tells_nothing(rig):
    fail_with(rig, RuntimeError("secret detail in /etc/passwd"))
    answer = await rig.ask("GET", "/fail")
    is_problem(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


async def test_a_body_with_very_many_errors_is_told_that_and_none_of_them(untouched):
    few = await untouched.ask("POST", "/api/v1/keys", {f"m{number}": 1 for number in range(MAX_WRONG - 1)})
    assert len(is_problem(few, 422, "invalid_request")["errors"]) == MAX_ERRORS  # one is that `scopes` is missing
    many = {f"m{number}": 1 for number in range(MAX_WRONG)}
    for path, body in (("keys", many), ("toolsets", {"name": "x", "members": [many]})):
        errors = is_problem(await untouched.ask("POST", f"/api/v1/{path}", body), 422, "invalid_request")["errors"]
        assert [each["detail"] for each in errors] == [f"more than {MAX_WRONG} members are wrong"]


def test_every_body_has_few_errors():
    routes = [each for each in _routes(build_api().routes) if each.body_field is not None]
    assert len(routes) > 20
    for route in routes:
        kind = route.body_field.field_info.annotation
        assert all(issubclass(each, Strict | NoneType) for each in get_args(kind) or [kind]), route.path


def _routes(every: Any) -> Any:
    for each in every:
        if isinstance(each, APIRoute):
            yield each
        elif (router := getattr(each, "original_router", None)) is not None:
            yield from _routes(router.routes)
