"""Secrets of a backend by URL are sealed for it, and for where they go."""

from dataclasses import replace

import pytest

from app.auth.sealing import SealBroken, Sealer
from app.backends.upstreams.upstream_secrets import SecretOpener, destination_of, opened, origin_of, sealed, secrets_of
from app.domain.resources.backends import Connect
from tests.backends.upstreams.rig import SEALER, spec_at

CONNECT = Connect(
    proxy="http://proxy:3128", proxy_auth="me:pass", ca="authority", certificate="ours", key="its key"
)  # fmt: skip
SPEC = spec_at("https://far.example/mcp", {"Authorization": "Bearer secret"}, connect=CONNECT)
OPENER = SecretOpener(SEALER)


def test_values_are_open_only_for_requests():
    assert "secret" not in repr(SPEC)
    assert "its key" not in f"{SPEC}{SPEC.connect.key}"
    assert "me:pass" not in f"{SPEC}{OPENER(SPEC)}"
    assert (OPENER(SPEC).headers, OPENER(SPEC).connect) == ({"Authorization": "Bearer secret"}, CONNECT)
    assert "its key" not in repr(OPENER(SPEC))
    assert OPENER(replace(SPEC, name="far:check", url="https://far.example:443/other")).connect == CONNECT


@pytest.mark.parametrize(
    "changed",
    [{"url": "https://evil.example/mcp"}, {"url": "http://far.example/mcp"}, {"url": "https://far.example:8443/mcp"},
     {"tenant": "zenith"}, {"name": "near"}, {"headers": {"X-Other": SPEC.headers["Authorization"]}},
     {"headers": {"Authorization": "plain text"}}, {"headers": {"Authorization": SPEC.connect.key}},
     {"connect": replace(SPEC.connect, ca="theirs")}, {"connect": replace(SPEC.connect, ca=None)},
     {"connect": replace(SPEC.connect, proxy="http://other:3128")}, {"connect": replace(SPEC.connect, proxy=None)},
     {"connect": replace(SPEC.connect, proxy_auth=SPEC.connect.key)},
     {"connect": replace(SPEC.connect, key=SPEC.headers["Authorization"])}],
)  # fmt: skip
def test_a_value_opens_only_for_what_it_was_given_for(changed):
    with pytest.raises(SealBroken):
        OPENER(replace(SPEC, **changed))
    with pytest.raises(SealBroken):
        SecretOpener(Sealer(b"x" * 32))(SPEC)


def test_each_is_opened_by_its_name():
    one = opened(SEALER, SPEC)
    assert [one(name) for name in secrets_of(SPEC)] == ["Bearer secret", "me:pass", "its key"]
    with pytest.raises(KeyError):
        one("headers.X-Other")


def test_those_that_are_kept_are_not_sealed_again():
    again = sealed(SEALER, replace(SPEC, headers={**SPEC.headers, "X-New": "two"}), secrets_of(SPEC))
    assert again.headers["Authorization"] == SPEC.headers["Authorization"]
    assert again.connect == SPEC.connect
    assert OPENER(again).headers == {"Authorization": "Bearer secret", "X-New": "two"}


def test_an_origin_has_a_port():
    assert origin_of("https://Far.example/a") == "https://far.example:443"
    assert destination_of(spec_at("https://far.example/")) == "https://far.example:443"  # as sealed by earlier releases
