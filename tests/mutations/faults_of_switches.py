"""Faults of what is switched off, and of the audit trail's answers."""

from tests.mutations.fault import Fault

SWITCHES = ("tests/admin/test_switches.py",)
BOTH_NODES = "tests/integration/test_switched_off.py::test_what_is_switched_off_ends_at_both_nodes_within_a_second"
ON_EVERY_NODE = "tests/cluster/test_changes.py::test_what_is_switched_off_and_on_is_so_on_every_node"

FAULTS_OF_SWITCHES = (
    Fault(
        "a credential that is switched off is let in",
        "app/auth/authenticator.py",
        "principal = await verify()\n        if self._switches is not None:",
        "principal = await verify()\n        if False and self._switches is not None:",
        SWITCHES,
    ),
    Fault(
        "an administrator of the tenant switches on what the platform has switched off",
        "app/auth/policy.py",
        "(not off_by_platform or is_platform_admin(principal))",
        "(not off_by_platform or True)",
        SWITCHES,
    ),
    Fault(
        "an administrator of the tenant changes a command",
        "app/admin/_backend_rights.py",
        "if url is None and not is_platform_admin(access.principal):",
        "if False:",
        ("tests/admin/resources/test_backends_url.py",),
    ),
    Fault(
        "a platform administrator switches off the key that he uses",
        "app/admin/resources/api_keys.py",
        "if not switch.enabled and (key.tenant, KEY_ISSUER, key.id) == access.principal.identity:",
        "if False:",
        SWITCHES,
    ),
    Fault(
        "a stranger hears that a backend is switched off",
        "app/http/transports/front.py",
        "if not may_connect(request.principal, request.tenant, request.backend):",
        "if not request.tenant:",
        (f"{BOTH_NODES}_and_says_so[backend]",),
    ),
    Fault(
        "the sessions of a tenant that is switched off go on",
        "app/cluster/node_status/change_effects.py",
        'self._end_tenant(tenant.name, "tenant_disabled", off)',
        "pass",
        (ON_EVERY_NODE,),
    ),
    Fault(
        "a changed backend of a tenant that is off is started",
        "app/cluster/node_status/change_effects.py",
        "elif spec.toolset is None and not self.is_off(spec.tenant):",
        "else:",
        (ON_EVERY_NODE,),
    ),
    Fault(
        "what was switched off during a gap is not found",
        "app/cluster/reconcile.py",
        "await self._compare_identities(everybody[start : start + BATCH])",
        "pass",
        ("tests/cluster/test_changes.py::test_who_does_not_know_its_place_compares_everything",),
    ),
    Fault(
        "a parameter that nobody knows is ignored",
        "app/admin/_route.py",
        "_require_known(request, known)",
        "pass",
        ("tests/admin/test_route_parameters.py",),
    ),
    Fault(
        "the audit trail shows no variable whose value has changed",
        "app/admin/audit_changes.py",
        "for name in was if was[name] != now.get(name)]",
        "for name in was if False]",
        ("tests/admin/resources/test_audit.py",),
    ),
)
