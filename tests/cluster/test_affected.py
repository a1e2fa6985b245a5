"""What the rows of the audit trail are about."""

from datetime import UTC, datetime

import pytest

from app.cluster._affected import Affected, Kind, affected_by
from app.storage.audit import Act


@pytest.mark.parametrize(
    ("action", "target", "detail", "affected"),
    [
        ("backend.create", "backends/x", "", Affected(Kind.BACKEND, ("acme", "x"))),
        ("backend.change", "backends/x", "", Affected(Kind.BACKEND, ("acme", "x"))),
        ("backend.update", "backends/x", "notes-mcp 2.0.0", Affected(Kind.BACKEND, ("acme", "x"))),
        ("backend.delete", "backends/x", "", Affected(Kind.BACKEND, ("acme", "x"))),
        ("toolset.change", "toolsets/x", "", Affected(Kind.BACKEND, ("acme", "x"))),
        ("tool.approve", "backends/x", "a b", Affected(Kind.BACKEND, ("acme", "x"))),
        ("backend.restart", "backends/x", "", Affected(Kind.RESTART, ("acme", "x"))),
        ("tenant.change", "", "limits", Affected(Kind.TENANT, ("acme",))),
        ("tenant.delete", "", "", Affected(Kind.TENANT_GONE, ("acme",))),
        ("issuer.create", "issuers/1", "https://i", Affected(Kind.ISSUER, ("acme", "https://i"))),
        ("issuer.delete", "issuers/1", "https://i", Affected(Kind.ISSUER, ("acme", "https://i"))),
        ("guide.delete", "guides/g", "", Affected(Kind.WRITINGS, ("acme",))),
        ("recipe.create", "recipes/r", "", Affected(Kind.WRITINGS, ("acme",))),
        ("key.change", "keys/k", "enabled", Affected(Kind.PRINCIPAL, ("acme", "key", "k"))),
        ("key.revoke", "keys/k", "", Affected(Kind.PRINCIPAL, ("acme", "key", "k"))),
        (
            "principal.change",
            "principals/1",
            "https://i a l/ice",
            Affected(Kind.PRINCIPAL, ("acme", "https://i", "a l/ice")),
        ),
        ("key.create", "keys/k", "", None),
        ("tenant.create", "", "", None),
        ("backend.check", "backends/x", "", None),
        ("issuer.tenants", "issuers/1", "https://i", None),
        ("session.end", "sessions/s", "", None),
    ],
)
def test_what_an_act_affects(action, target, detail, affected):
    assert affected_by(Act("acme", ("default", "key", "k"), action, target, datetime.now(UTC), "", detail)) == affected
