"""…/backends and …/toolsets with `access`: what is shown, refused and changed, and by whom."""

from typing import Any

import pytest

PATHS = ("/api/v1/tenants/acme/backends/echo", "/api/v1/tenants/acme/toolsets/all")
ANALYSTS: dict[str, Any] = {
    "who": {"group": "analysts", "issuer": "https://idp.example"},
    "tools": ["read_*"],
    "prompts": ["p"],
    "resources": ["note://*"],
    "limits": {"requests_per_minute": 60, "calls_per_day": 1000},
}
EVERYONE: dict[str, Any] = {"who": {"everyone": True}, "tools": ["*"]}
NOBODY = {"group": None, "person": None, "issuer": None, "key": None, "client": None, "everyone": False}


def shown(entry: dict[str, Any]) -> dict[str, Any]:
    """As an answer has it: with every member."""
    lists: dict[str, Any] = {"tools": [], "prompts": [], "resources": []}
    limits = {"requests_per_minute": None, "calls_per_day": None}
    return {**lists, **entry, "who": {**NOBODY, **entry["who"]}, "limits": {**limits, **entry.get("limits", {})}}


async def patch(rig: Any, path: str, access: Any, status: int = 200, key: str | None = None) -> Any:
    answer = await rig.ask("PATCH", path, {"access": access}, key=key)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("path", PATHS)
async def test_a_list_is_shown_as_it_was_sent_and_another_one_takes_its_place(rig, path):
    assert (await rig.ask("GET", path)).json()["access"] == []
    for access in ([ANALYSTS, EVERYONE], [EVERYONE], [{**ANALYSTS, "who": {"person": "bob"}}], []):
        wanted = [shown(each) for each in access]
        assert (await patch(rig, path, access))["access"] == wanted
        assert (await rig.ask("GET", path)).json()["access"] == wanted
        assert (await patch(rig, path, wanted))["access"] == wanted
    await patch(rig, path, [EVERYONE])
    assert (await patch(rig, path, None))["access"] == []


async def test_both_are_made_with_a_list(rig):
    for what, body in (("backends", {"command": "cat"}), ("toolsets", {"members": [{"backend": "echo"}]})):
        path = f"/api/v1/tenants/acme/{what}"
        made = await rig.ask("POST", path, {"name": "new-" + what, **body, "access": [ANALYSTS]})
        assert (made.status_code, made.json()["access"]) == (201, [shown(ANALYSTS)])


WRONG: dict[str, Any] = {
    "nobody": {"who": {}, "tools": ["*"]},
    "no who": {"tools": ["*"]},
    "two": {"who": {"group": "a", "person": "b"}, "tools": ["*"]},
    "everyone and a key": {"who": {"everyone": True, "key": "k"}, "tools": ["*"]},
    "the key of an issuer": {"who": {"key": "k", "issuer": "https://idp.example"}, "tools": ["*"]},
    "nothing": {"who": {"everyone": True}},
    "empty lists": {"who": {"everyone": True}, "tools": [], "prompts": [], "resources": []},
    "an unknown member": {"who": {"everyone": True}, "tools": ["*"], "deny": ["x"]},
    "an unknown member of who": {"who": {"role": "x"}, "tools": ["*"]},
    "an empty name": {"who": {"group": ""}, "tools": ["*"]},
    "a name in two lines": {"who": {"group": "a\nb"}, "tools": ["*"]},
    "a long name": {"who": {"group": "a" * 513}, "tools": ["*"]},
    "a number": {"who": {"key": 7}, "tools": ["*"]},
    "an empty pattern": {"who": {"everyone": True}, "tools": [""]},
    "a pattern with NUL": {"who": {"everyone": True}, "tools": ["a\0b"]},
    "a text": {"who": {"everyone": True}, "tools": "*"},
    "many patterns": {"who": {"everyone": True}, "tools": ["*"] * 101},
    "never": {**EVERYONE, "limits": {"requests_per_minute": 0}},
    "too often": {**EVERYONE, "limits": {"requests_per_minute": 1_000_001}},
    "half a call": {**EVERYONE, "limits": {"calls_per_day": 0.5}},
    "an unknown limit": {**EVERYONE, "limits": {"calls_per_hour": 1}},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_no_entry_is_refused(rig, path, wrong):
    problem = await patch(rig, path, [EVERYONE, WRONG[wrong]], 422)
    assert all(each["pointer"].startswith("#/access") or each["pointer"] == "#" for each in problem["errors"])
    assert (await rig.ask("GET", path)).json()["access"] == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_list_has_so_many_entries_and_patterns(rig, path):
    await patch(rig, path, [EVERYONE] * 101, 422)
    assert len((await patch(rig, path, [EVERYONE] * 100))["access"]) == 100
    ten = {**EVERYONE, "tools": ["*"] * 10}
    await patch(rig, path, [*[ten] * 99, {**ten, "prompts": ["*"]}, EVERYONE], 422)
    await patch(rig, path, [ten] * 100)


@pytest.mark.parametrize("path", PATHS)
async def test_an_administrator_of_the_tenant_may_change_it_and_nobody_else(rig, path):
    """Of a backend with a command too, of which they may not change what runs."""
    assert (await patch(rig, path, [EVERYONE], key=await rig.key("acme", "tenant:admin")))["access"] == [
        shown(EVERYONE)
    ]
    for scopes in (("mcp:connect",), ("tenant:read",), ("audit:read",)):
        await patch(rig, path, [], 403, key=await rig.key("acme", *scopes))
    await patch(rig, path, [], 404, key=await rig.key("zenith", "tenant:admin"))
    assert (await rig.ask("GET", path, key=await rig.key("acme", "tenant:read"))).json()["access"] == [shown(EVERYONE)]


async def test_this_node_reads_the_list_of_a_backend_again_at_once(rig, monkeypatch):
    read: list[tuple[str, str]] = []

    async def reread(key: tuple[str, str]) -> None:
        read.append(key)

    monkeypatch.setattr(rig.admin.catalog, "reread", reread, raising=False)
    await rig.ask("PATCH", PATHS[0], {"pin": "off"})
    assert read == []
    await patch(rig, PATHS[0], [EVERYONE])
    await patch(rig, PATHS[0], [EVERYONE])
    assert read == [("acme", "echo")]
