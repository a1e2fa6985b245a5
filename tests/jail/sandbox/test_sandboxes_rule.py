"""Which sandbox counts: the backend's, or the platform's rule."""

import pytest

from app.domain import Sandbox
from app.jail.sandbox.sandboxes import effective

OPEN = Sandbox("auto", read=("/srv",), write=("/out",), network="web")
ALL = Sandbox("require", read=("/srv",), write=("/out",), network="web")
SOME = Sandbox("require", ("files",))


@pytest.mark.parametrize("sandbox", [OPEN, Sandbox("off"), ALL, SOME])
def test_without_a_rule_or_for_an_exempt_tenant_the_backend_decides(sandbox):
    for exempt in (False, True):
        assert effective(sandbox, "auto", tenant_exempt=exempt) == sandbox
    assert effective(sandbox, "require", tenant_exempt=True) == sandbox


@pytest.mark.parametrize(
    ("sandbox", "counts"),
    [(OPEN, ALL), (ALL, ALL), (Sandbox("off"), Sandbox("require")), (Sandbox(), Sandbox("require")), (SOME, SOME)],
)
def test_the_platform_requires_sandboxes(sandbox, counts):
    assert effective(sandbox, "require", tenant_exempt=False) == counts


def test_a_list_without_force_does_not_narrow_the_rule():
    assert effective(Sandbox("auto", ("files",)), "require", tenant_exempt=False) == Sandbox("require")
