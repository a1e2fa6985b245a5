"""Values of headers are sealed for one backend and one host."""

from dataclasses import replace

import pytest

from app.auth.sealing import SealBroken, Sealer
from app.backends.upstreams.sealed_headers import HeaderOpener, origin_of, sealed
from tests.backends.upstreams.rig import SEALER, spec_at

SPEC = spec_at("https://far.example/mcp", {"Authorization": "Bearer secret"})


def test_values_are_open_only_for_requests():
    assert "secret" not in repr(SPEC)
    assert list(HeaderOpener(SEALER)(SPEC)) == [(b"Authorization", b"Bearer secret")]
    assert list(HeaderOpener(SEALER)(replace(SPEC, name="far:check", url="https://far.example:443/other")))


@pytest.mark.parametrize(
    "changed",
    [{"url": "https://evil.example/mcp"}, {"url": "http://far.example/mcp"}, {"url": "https://far.example:8443/mcp"},
     {"tenant": "zenith"}, {"name": "near"}, {"headers": {"X-Other": SPEC.headers["Authorization"]}},
     {"headers": {"Authorization": "plain text"}}],
)  # fmt: skip
def test_a_value_opens_only_for_what_it_was_given_for(changed):
    with pytest.raises(SealBroken):
        HeaderOpener(SEALER)(replace(SPEC, **changed))
    with pytest.raises(SealBroken):
        HeaderOpener(Sealer(b"x" * 32))(SPEC)


def test_an_origin_has_a_port():
    assert origin_of("https://Far.example/a") == "https://far.example:443"
    assert sealed(SEALER, "acme", "far", "https://far.example/", {}) == {}
