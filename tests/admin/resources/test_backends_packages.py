"""Backends whose command names a package: what is stored, and who may ask for it."""

import pytest

PATH = "/api/v1/tenants/acme/backends"
NOTES = {"name": "notes", "command": "npx", "args": ["-y", "notes-mcp", "--port", "3"]}


async def test_a_command_that_names_a_package_is_stored_with_it(rig):
    made = await rig.ask("POST", PATH, NOTES)
    assert made.status_code == 201
    package = made.json()["package"]
    assert {name: package[name] for name in ("registry", "name", "version", "program")} == {
        "registry": "npm", "name": "notes-mcp", "version": "1.0.0", "program": "notes-mcp",
    }  # fmt: skip
    assert (made.json()["command"], made.json()["args"]) == ("npx", NOTES["args"])
    changed = await rig.ask("PATCH", f"{PATH}/notes", {"command": "notes", "args": []})
    assert changed.json()["package"] is None


async def test_what_cannot_be_installed_is_refused_with_what_to_do(rig):
    refused = await rig.ask("POST", PATH, {**NOTES, "args": ["github:acme/notes"]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/command")
    assert "publish it to a registry" in refused.json()["detail"]
    assert (await rig.ask("GET", f"{PATH}/notes")).status_code == 404


async def test_a_name_that_is_taken_is_refused_before_anything_is_installed(rig):
    assert (await rig.ask("POST", PATH, {"name": "notes", "command": "notes"})).status_code == 201
    assert (await rig.ask("POST", PATH, {**NOTES, "args": ["github:acme/notes"]})).status_code == 409


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_only_the_platform_registers_a_package(rig, method):
    assert (await rig.ask("POST", PATH, {"name": "notes", "command": "notes"})).status_code == 201
    key = await rig.key("acme", "tenant:admin")
    body = {**NOTES, "name": "other"} if method == "POST" else {"command": "npx", "args": ["notes-mcp"]}
    path = PATH if method == "POST" else f"{PATH}/notes"
    assert (await rig.ask(method, path, body, key=key)).status_code == 403
