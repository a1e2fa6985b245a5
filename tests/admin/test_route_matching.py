"""A request tries the routes of its own resource, not those of all."""

import pytest
from fastapi.routing import APIRoute

from app.admin.resources import backends
from app.admin.resources.now import activity


@pytest.mark.parametrize("path", ["/api/v1/tenants/acme/me", "/api/v1/backends/time"])
async def test_few_routes_are_tried(rig, path, monkeypatch):
    tried, matches = list[str](), APIRoute.matches

    def noted(route, scope):
        tried.append(route.path)
        return matches(route, scope)

    await rig.ask("GET", "/api/v1/me")  # the routers are ready
    monkeypatch.setattr(APIRoute, "matches", noted)
    await rig.ask("GET", path)
    assert {each.partition("/{")[0] for each in tried} <= {"/tenants", "/me", "/backends"}
    assert len(tried) < 40


async def test_words_that_are_names_are_no_obstacle(rig):
    for name in ("me", "backends", "keys"):
        assert (await rig.ask("POST", "/api/v1/tenants", {"name": name})).status_code == 201
        assert (await rig.ask("GET", f"/api/v1/tenants/{name}")).json()["name"] == name
        assert (await rig.ask("GET", f"/api/v1/tenants/{name}/backends")).status_code == 200


def test_the_last_fixed_word_of_each_route_is_looked_for():
    assert {"backends", "check", "restart"} <= backends.router._last_words
    assert activity.router._last_words == {"activity"}
