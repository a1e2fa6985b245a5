"""Backends whose command names a package: what is stored, and who may ask for it."""

import pytest

from app.backends.images.images import Images

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


# --- what administrators of a tenant do themselves


async def lets(rig, *patterns):
    assert (await rig.ask("PATCH", "/api/v1/tenants/acme", {"packages_allow": [*patterns]})).status_code == 200


async def test_a_package_that_is_not_listed_is_a_request_which_the_platform_grants(rig):
    key = await rig.key("acme", "tenant:admin")
    asked = await rig.ask("POST", PATH, {**NOTES, "env": {"TOKEN": "s3cret"}}, key=key)
    assert asked.status_code == 201
    shown = asked.json()
    assert (shown["enabled"], shown["off_by_platform"], shown["package"]) == (False, True, None)
    assert shown["reason"].startswith("asked for by key ")
    for method, path, body in (
        ("PATCH", f"{PATH}/notes", {"enabled": True}), ("PATCH", f"{PATH}/notes", {"args": ["-y", "other-mcp"]}),
        ("POST", f"{PATH}/notes:check", None), ("POST", f"{PATH}/notes:update", {}), ("DELETE", f"{PATH}/notes", None),
    ):  # fmt: skip
        assert (await rig.ask(method, path, body, key=key)).status_code == 403
    granted = (await rig.ask("PATCH", f"{PATH}/notes", {"enabled": True})).json()
    assert (granted["enabled"], granted["reason"], granted["package"]["name"]) == (True, "", "notes-mcp")
    assert (await rig.admin.backends.get("acme", "notes")).env == {"TOKEN": "s3cret"}


async def test_what_is_listed_administrators_register_change_update_and_remove(rig):
    key = await rig.key("acme", "tenant:admin")
    await lets(rig, "npm:notes-*", "oci:mcp/*")
    made = await rig.ask("POST", PATH, NOTES, key=key)
    assert (made.status_code, made.json()["enabled"], made.json()["package"]["name"]) == (201, True, "notes-mcp")
    changed = await rig.ask("PATCH", f"{PATH}/notes", {"env": {"A": "b"}, "args": ["notes-other"]}, key=key)
    assert (changed.status_code, changed.json()["package"]["name"]) == (200, "notes-other")
    for body in ({"args": ["other"]}, {"command": "cat", "args": []}, {"sandbox": {"read": ["/srv"]}}, {"cwd": "/srv"}):
        refused = await rig.ask("PATCH", f"{PATH}/notes", body, key=key)
        assert (refused.status_code, "`packages_allow` of the tenant" in refused.json()["detail"]) == (403, True)
    assert (await rig.ask("POST", PATH, {**TIME, "name": "time"}, key=key)).json()["enabled"] is True
    await lets(rig, "oci:mcp/*")
    assert (await rig.ask("DELETE", f"{PATH}/notes", key=key)).status_code == 403
    assert (await rig.ask("DELETE", f"{PATH}/time", key=key)).status_code == 204


async def test_who_changes_what_is_started_gives_its_secrets_again(rig):
    key = await rig.key("acme", "tenant:admin")
    await lets(rig, "npm:*")
    args = ["-y", "notes-mcp", "--api-key", "k3y-0f-th3-pl4tf0rm-0123456789"]
    assert (
        await rig.ask("POST", PATH, {**NOTES, "args": args, "env": {"TOKEN": "s3cret", "B": "b"}})
    ).status_code == 201
    for change, pointer in (
        ({"args": ["evil-mcp"]}, "#/env"),
        ({"env": {"NODE_OPTIONS": "--import=data:text/javascript,1"}}, "#/env"),
        ({"args": ["evil-mcp"], "env": {"TOKEN": "***", "B": "c"}}, "#/env"),
        ({"env": {"TOKEN": None, "B": "c"}}, "#/args"),
        ({"args": ["evil-mcp", "--api-key", "***"], "env": None}, "#/args"),
    ):
        refused = await rig.ask("PATCH", f"{PATH}/notes", change, key=key)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    anew = {"args": ["other-mcp"], "env": {"TOKEN": "theirs", "B": None}}
    assert (await rig.ask("PATCH", f"{PATH}/notes", anew, key=key)).status_code == 200
    assert (await rig.ask("PATCH", f"{PATH}/notes", {"max_processes": 3}, key=key)).status_code == 200
    assert (await rig.admin.backends.get("acme", "notes")).env == {"TOKEN": "theirs"}


async def test_other_commands_and_tenants_are_not_even_asked_for(rig):
    key = await rig.key("acme", "tenant:admin")
    await lets(rig, "npm:*", "pypi:*", "oci:*")
    assert (await rig.ask("POST", PATH, {"name": "cat", "command": "cat"}, key=key)).status_code == 403
    assert (await rig.ask("POST", "/api/v1/tenants/zenith/backends", NOTES, key=key)).status_code == 404
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("POST", PATH, NOTES, key=reader)).status_code == 403
    refused = await rig.ask("PATCH", "/api/v1/tenants/acme", {"packages_allow": ["npm:*"]}, key=key)
    assert refused.status_code == 403


async def test_who_loses_the_list_while_it_is_installed_has_only_asked(rig, monkeypatch):
    key = await rig.key("acme", "tenant:admin")
    await lets(rig, "npm:*")
    resolved = type(rig.admin.packages).resolved

    async def slowly(self, spec, known=None):
        await lets(rig)
        return await resolved(self, spec, known)

    monkeypatch.setattr(type(rig.admin.packages), "resolved", slowly)
    made = (await rig.ask("POST", PATH, NOTES, key=key)).json()
    assert (made["enabled"], made["package"]) == (False, None)


async def test_an_import_says_who_registers_what(rig):
    key = await rig.key("acme", "tenant:admin")
    await lets(rig, "npm:notes-mcp")
    servers = {
        "notes": {"command": "npx", "args": ["-y", "notes-mcp"]}, "other": {"command": "uvx", "args": ["other-mcp"]},
        "cat": {"command": "cat"},
    }  # fmt: skip
    for apply in (False, True):
        body = {"document": {"mcpServers": servers}, "apply": apply}
        entries = {
            each["source"]: each for each in (await rig.ask("POST", f"{PATH}:import", body, key=key)).json()["entries"]
        }
        assert "this needs the scope platform:admin" in entries["cat"]["problems"][0]
        assert "a platform administrator has to switch it on" in entries["other"]["notes"][-1]
        assert (entries["notes"]["problems"], entries["other"]["problems"]) == ([], [])
    assert (await rig.admin.backends.get("acme", "notes")).enabled
    assert not (await rig.admin.backends.get("acme", "other")).enabled


# --- images

TIME = {"name": "time", "command": "docker", "args": ["run", "-i", "--rm", "-e", "API_KEY=k3y-of-it", "mcp/time:2"]}


async def test_a_command_that_names_an_image_is_stored_with_its_id(rig):
    made = await rig.ask("POST", PATH, TIME)
    assert made.status_code == 201
    assert made.json()["package"] == {
        "registry": "oci", "name": "mcp/time", "version": "2", "program": "", "lock": "a" * 64, "scripts": [],
    }  # fmt: skip
    assert "k3y-of-it" not in made.text
    assert (await rig.admin.backends.get("acme", "time")).is_image
    same = await rig.ask("PATCH", f"{PATH}/time", {"max_processes": 3})
    assert (same.status_code, same.json()["package"]) == (200, made.json()["package"])
    changed = await rig.ask("PATCH", f"{PATH}/time", {"command": "notes", "args": []})
    assert changed.json()["package"] is None


@pytest.mark.parametrize(("change", "pointer", "words"), [
    ({"args": ["run", "--privileged", "x"]}, "#/args", "gives a container rights over the node"),
    ({"args": ["run", "-v", "/var/run/docker.sock:/s", "x"]}, "#/args", "no container is given a socket"),
    ({"args": ["run", "--", "-x"]}, "#/args", "is not the name of an image"),
    ({"sandbox": {"network": "web"}}, "#/sandbox/network", "a container has no network yet"),
    ({"cwd": "/srv"}, "#/cwd", "as `-w DIRECTORY`"),
    ({"start": "auto"}, "#/start", "no container is forked"),
])  # fmt: skip
async def test_what_no_container_can_have_is_refused_where_it_stands(rig, change, pointer, words):
    assert (await rig.ask("POST", PATH, TIME)).status_code == 201
    for method, path, body in (("POST", PATH, {**TIME, "name": "other", **change}), ("PATCH", f"{PATH}/time", change)):
        refused = await rig.ask(method, path, body)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
        assert words in refused.json()["detail"]


async def test_without_an_engine_an_image_is_refused_with_what_to_do(rig, monkeypatch):
    monkeypatch.setattr(rig.admin.packages, "images", Images(None))
    refused = await rig.ask("POST", PATH, TIME)
    assert refused.status_code == 422
    assert "set CONTAINER_ENGINE to podman or docker" in refused.json()["detail"]
    document = {"mcpServers": {"time": {"command": "docker", "args": TIME["args"]}}}
    imported = await rig.ask("POST", f"{PATH}:import", {"document": document, "apply": True})
    (entry,) = imported.json()["entries"]
    assert "set CONTAINER_ENGINE to podman or docker" in " ".join(entry["problems"])


async def test_an_image_that_is_not_listed_is_a_request_too(rig):
    assert (await rig.ask("POST", PATH, {"name": "notes", "command": "notes"})).status_code == 201
    key = await rig.key("acme", "tenant:admin")
    changed = {"command": "docker", "args": TIME["args"]}
    assert (await rig.ask("PATCH", f"{PATH}/notes", changed, key=key)).status_code == 403
    asked = (await rig.ask("POST", PATH, TIME, key=key)).json()
    assert (asked["enabled"], asked["package"]) == (False, None)
    assert (await rig.ask("PATCH", f"{PATH}/time", {"enabled": True})).json()["package"]["lock"] == "a" * 64
