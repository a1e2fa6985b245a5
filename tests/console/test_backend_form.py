"""The form of a backend has a field for each member that is declared, of the kind that fits it."""

from app.admin.schemas.backends import BackendBody
from app.console.backend_form import groups

FIELDS = {field.name: field for part in groups().values() for field in part}


def test_every_member_has_a_field():
    declared = {name.partition(".")[0] for name in FIELDS}
    assert declared | {"name", "enabled", "reason"} == set(BackendBody.model_fields)


def test_a_field_is_of_the_kind_of_its_member():
    kinds = {
        name: FIELDS[name].kind for name in ("cwd", "args", "env", "rename", "limits.cpu", "warm", "openapi", "access")
    }
    assert kinds == {
        "cwd": "text", "args": "lines", "env": "pairs", "rename": "json-members", "limits.cpu": "number",
        "warm": "number-or-word", "openapi": "document", "access": "json",
    }  # fmt: skip
    assert FIELDS["broadcast"].kind == "flag"
    assert FIELDS["pin_minor"].choices == ("ask", "accept")  # the default is the first


def test_a_field_has_the_value_of_a_backend():
    assert FIELDS["timeouts.park_s"].now({"timeouts": {"park_s": None}}) is None
    assert FIELDS["broadcast"].now({"broadcast": False}) == "false"
    assert FIELDS["broadcast"].now(None) is None
    network = FIELDS["sandbox.network"]
    assert network.kind == "network"
    assert network.now({"sandbox": {"network": "web"}}) == "web"
    assert network.now({"sandbox": {"network": {"allow": ["a:1", "b:2"], "web": True}}}) == "a:1\nb:2\nweb"
