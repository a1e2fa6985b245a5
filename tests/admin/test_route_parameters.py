"""Query parameters that no route has asked for are refused: on every route, and by name."""

import pytest

from app.admin.router import PREFIX
from tests.admin.rig import shared_api

OPERATIONS = {
    (method.upper(), path): frozenset(each["name"] for each in operation.get("parameters", ()) if each["in"] == "query")
    for path, methods in shared_api().openapi()["paths"].items()
    for method, operation in methods.items()
    if path.startswith(PREFIX)
}
NAMES = dict.fromkeys(
    (
        "tenant",
        "backend",
        "toolset",
        "guide",
        "recipe",
        "session",
        "process",
        "key",
        "issuer",
        "inspection",
        "client",
        "connection",
    ),
    "acme",
)


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=" ".join)
async def test_a_parameter_that_a_route_does_not_know_is_refused_by_name_with_those_it_knows(untouched, method, path):
    answer = await untouched.ask(method, path.format_map(NAMES) + "?actoin=key.revoke")
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_request")
    (error,) = answer.json()["errors"]
    assert error["parameter"] == "actoin"
    assert "`actoin`" in error["detail"]
    assert {name for name in OPERATIONS[method, path] if f"`{name}`" in error["detail"]} == OPERATIONS[method, path]


@pytest.mark.parametrize(("method", "path"), [case for case in OPERATIONS if OPERATIONS[case]], ids=" ".join)
async def test_a_parameter_that_stands_twice_is_refused(untouched, method, path):
    for name in OPERATIONS[method, path]:
        answer = await untouched.ask(method, f"{path.format_map(NAMES)}?{name}=1&{name}=2")
        assert answer.status_code == 422, name
        assert [error["parameter"] for error in answer.json()["errors"]] == [name]
        assert "repeated" in answer.json()["errors"][0]["detail"]


async def test_strangers_hear_nothing_of_parameters(untouched):
    for method, path in OPERATIONS:
        answer = await untouched.ask(method, path.format_map(NAMES) + "?actoin=1", key="")
        assert answer.status_code == 401, path


async def test_there_are_at_most_twenty_complaints(untouched):
    answer = await untouched.ask("GET", f"{PREFIX}/tenants?" + "&".join(f"p{number}=" for number in range(500)))
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20


async def test_nothing_is_done_where_a_parameter_is_unknown(rig):
    assert (await rig.ask("DELETE", f"{PREFIX}/tenants/acme?dry_run=true")).status_code == 422
    answer = await rig.ask("POST", f"{PREFIX}/tenants?dry_run=1", {"name": "new"}, headers={"Idempotency-Key": "a"})
    assert answer.status_code == 422
    assert (await rig.ask("POST", f"{PREFIX}/tenants", {"name": "new"}, headers={"Idempotency-Key": "a"})).is_success
    assert (await rig.ask("GET", f"{PREFIX}/tenants/acme")).is_success
