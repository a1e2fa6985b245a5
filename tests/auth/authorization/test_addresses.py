"""Which spellings of an endpoint's address name it, and what is never one of a tenant's."""

import pytest

from app.auth.authorization.addresses import Addresses

TO = Addresses("https://gw.example/base", "acme")


def test_addresses_begin_with_the_urls_by_which_the_client_reaches_the_gateway():
    assert TO.issuer == "https://gw.example/base/oauth/acme"
    assert TO.endpoint("token") == "https://gw.example/base/oauth/acme/token"
    for backend in ("", "echo"):
        assert TO.backend_of(TO.audience(backend)) == backend


@pytest.mark.parametrize(("path", "backend"), [
    ("/t/acme", ""), ("/t/acme/", ""), ("/t/acme/echo", "echo"), ("/t/acme/echo/", "echo"), ("/t/acme/a-1/mcp", "a-1"),
    ("/t/acme/echo/mcp/", "echo"), ("/t/acme/echo/sse", "echo"), ("/t/acme/echo/messages", "echo"),
])  # fmt: skip
def test_every_spelling_of_an_endpoint_names_it(path, backend):
    assert TO.backend_of(TO.base_url + path) == backend


@pytest.mark.parametrize("path", [
    "", "/", "/t", "/t/", "/t/zenith", "/t/zenith/echo/mcp", "/t/acme-2", "/t/ACME", "/t/acme/Echo", "/t/acme//echo",
    "/t/acme/echo//", "/t/acme/echo/other", "/t/acme/echo/mcp/x", "/t/acme/../zenith/echo", "/t/acme/echo?x=1",
    "/t/acme/echo#x", "/t/acme/%65cho", "/t/acme\n", "/t/acme/echo\n", "/t/acme/écho",
    "/t/acme/" + "a" * 64, "/x/t/acme",
    "/api/v1/tenants/acme", "@evil.example/t/acme", ".evil.example/t/acme",
])  # fmt: skip
def test_what_is_no_endpoint_of_the_tenant_names_nothing(path):
    assert TO.backend_of(TO.base_url + path) is None


@pytest.mark.parametrize("resource", [
    "", "/t/acme", "http://gw.example/base/t/acme", "https://gw.example/t/acme", "https://gw.example/basement/t/acme",
    "https://evil.example/https://gw.example/base/t/acme", " https://gw.example/base/t/acme",
])  # fmt: skip
def test_what_is_of_another_gateway_names_nothing(resource):
    assert TO.backend_of(resource) is None
