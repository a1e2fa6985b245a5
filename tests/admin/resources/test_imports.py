"""…/backends:import"""

import json
from typing import Any

import pytest

from app.admin.importing import EXISTS, MAX_SERVERS
from app.errors import StorageUnavailable
from app.storage.backends import BackendRepository
from tests.admin.importing.test_importing import CLAUDE, CODEX, OPENCODE, SERVER, VSCODE
from tests.admin.rig import Rig

BACKENDS = "/api/v1/tenants/acme/backends"
PATH = BACKENDS + ":import"


def servers(**entries: object) -> dict[str, Any]:
    return {"mcpServers": entries}


async def names(rig: Rig) -> list[str]:
    return [each["name"] for each in (await rig.ask("GET", BACKENDS)).json()["items"]]


@pytest.mark.parametrize(
    ("document", "env", "found"),
    [
        (CLAUDE, {}, {"weather-server": "npx", "files": "uvx"}),
        (json.loads(CLAUDE), {}, {"weather-server": "npx", "files": "uvx"}),
        ("\ufeff\n" + VSCODE, {"token": "t"}, {"github": "gh-mcp", "docs": "https://docs.example.com/mcp"}),
        ("// by hand\n" + VSCODE, {"token": "t"}, {"github": "gh-mcp", "docs": "https://docs.example.com/mcp"}),
        ({"mcp": {"servers": {"a": {"command": "cat"}}}}, {}, {"a": "cat"}),
        (OPENCODE, {"A_KEY": "k"}, {"local": "bun", "away": "https://mcp.example.com"}),
        (CODEX, {"DOCS_TOKEN": "k"}, {"docs-search": "npx", "remote": "https://mcp.example.com"}),
        (SERVER, {"WEATHER_KEY": "k"}, {"weather-mcp": "npx"}),
        (json.dumps({"server": SERVER}), {"WEATHER_KEY": "k"}, {"weather-mcp": "npx"}),
    ],
)
async def test_every_format_first_looked_at_then_made(rig, document, env, found):
    body = {"document": document, "env": env}
    dry = await rig.ask("POST", PATH, body)
    assert (dry.status_code, dry.json()["applied"]) == (200, False)
    assert [each["name"] for each in dry.json()["entries"] if each["outcome"] == "would_create"] == [*found]
    assert await names(rig) == ["echo"]
    assert (rig.heard, await rig.trail()) == ([], [])

    answer = (await rig.ask("POST", PATH, {**body, "apply": True})).json()
    created = [each for each in answer["entries"] if each["outcome"] == "created"]
    assert answer["applied"] is True
    assert [(each["name"], each["problems"]) for each in created] == [(name, []) for name in found]
    assert all(each["problems"] for each in answer["entries"] if each["outcome"] == "skipped")
    specs = [await rig.admin.backends.get("acme", name) for name in found]
    assert [spec.command or spec.url for spec in specs] == [*found.values()]
    assert rig.heard == [("backend", *spec.key) for spec in specs]
    acts = [(act.tenant, act.action, act.target) for act in await rig.trail("acme")]
    assert acts == [("acme", "backend.create", f"backends/{name}") for name in found]


async def test_the_path_without_tenant_is_the_default_tenants(rig):
    body = {"document": servers(**{"A b": {"command": "cat"}}), "apply": True}
    answer = await rig.ask("POST", "/api/v1/backends:import", body)
    assert answer.json() == {
        "applied": True,
        "entries": [
            {
                "source": "A b",
                "name": "a-b",
                "outcome": "created",
                "becomes": "cat",
                "needs": [],
                "problems": [],
                "notes": ["named a-b"],
            }
        ],
    }
    assert (await rig.admin.backends.get("default", "a-b")).command == "cat"


async def test_what_cannot_be_made_is_skipped_and_the_others_are_made(rig):
    before = await rig.admin.backends.get("acme", "echo")
    document = servers(
        **{
            "echo": {"command": "other"},
            "日本": {"command": "cat"},
            "\ud800x": {"command": "cat"},
            "X": {"command": "y"},
        },
        number={"command": "cat", "args": [None], "env": {"TOKEN": "hunter2"}},
        away={"url": "https://mcp.example.com"},
        good={"command": "cat"},
    )
    for apply in (False, True):
        answer = await rig.ask("POST", PATH, {"document": json.dumps(document), "apply": apply})
        done = "created" if apply else "would_create"
        assert [(each["source"], each["name"], each["outcome"]) for each in answer.json()["entries"]] == [
            ("echo", "echo", "skipped"),
            ("日本", None, "skipped"),
            ("\\ud800x", "x", done),
            ("X", "x-2", done),
            ("number", "number", "skipped"),
            ("away", "away", done),
            ("good", "good", done),
        ]
        assert answer.json()["entries"][0]["problems"] == [EXISTS]
        assert answer.json()["entries"][4]["problems"] == ["args.0: Input should be a valid string"]
        assert "hunter2" not in answer.text
    assert await rig.admin.backends.get("acme", "echo") == before
    assert await names(rig) == ["away", "echo", "good", "x", "x-2"]
    assert (await rig.admin.backends.get("acme", "away")).url == "https://mcp.example.com"


async def test_a_placeholder_is_filled_or_its_server_skipped(rig):
    document = servers(a={"command": "cat", "args": ["--key=${KEY}"], "env": {"TOKEN": "${input:my-token}"}})
    skipped = (await rig.ask("POST", PATH, {"document": document, "apply": True})).json()["entries"][0]
    assert skipped["outcome"] == "skipped"
    assert skipped["problems"] == ["needs my-token, KEY: give it with the request's `env`"]
    assert await names(rig) == ["echo"]
    env = {"KEY": "k3y", "my-token": "s3cret"}
    answer = await rig.ask("POST", PATH, {"document": document, "env": env, "apply": True})
    spec = await rig.admin.backends.get("acme", "a")
    assert (spec.args, spec.env) == (("--key=k3y",), {"TOKEN": "s3cret"})
    assert "s3cret" not in answer.text + str(await rig.trail())


async def test_one_made_meanwhile_is_not_overwritten(rig, monkeypatch):
    async def none(*_: object, **__: object) -> list[object]:
        return []

    monkeypatch.setattr(BackendRepository, "list", none)
    document = servers(echo={"command": "other"}, good={"command": "cat"})
    entries = (await rig.ask("POST", PATH, {"document": document, "apply": True})).json()["entries"]
    assert [each["outcome"] for each in entries] == ["skipped", "created"]
    assert entries[0]["problems"]
    assert (await rig.admin.backends.get("acme", "echo")).command == "/bin/cat"


@pytest.mark.parametrize("made", [0, 1])
async def test_a_database_that_goes_away_is_503_only_if_nothing_was_made(rig, monkeypatch, made):
    create, calls = BackendRepository.create, list[str]()

    async def failing(self: BackendRepository, tenant: str, spec: Any, **more: Any) -> Any:
        calls.append(spec.name)
        if len(calls) > made:
            raise StorageUnavailable
        return await create(self, tenant, spec, **more)

    monkeypatch.setattr(BackendRepository, "create", failing)
    document = servers(**{name: {"command": "cat"} for name in "abc"})
    answer = await rig.ask("POST", PATH, {"document": document, "apply": True})
    assert calls == ["a", "b"][: made + 1]
    if made:
        assert [each["outcome"] for each in answer.json()["entries"]] == ["created", "skipped", "skipped"]
    else:
        assert answer.status_code == 503


async def test_repeated_under_an_idempotency_key_it_is_done_once(rig):
    body = {"document": servers(a={"command": "cat"}), "apply": True}
    first, again = [await rig.ask("POST", PATH, body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert first.json()["entries"][0]["outcome"] == "created"
    assert again.content == first.content


@pytest.mark.parametrize(
    "document",
    [
        {},
        "",
        "hello",
        "[]",
        '{"mcpServers": ',
        {"mcpServers": []},
        "x = 1",
        "a" + ".a" * 1000 + " = 1",
        {"servers": [{}] * (MAX_SERVERS + 1)},
        '{"a":' * 20_000,
        '{"mcpServers": {"a": {}, "a": {}}}',
        '{"' + '\\"' * 100_000,
        "{" + "/*" * 100_000,
    ],
)
async def test_no_known_format_is_422_and_says_which_are_known(untouched, document):
    answer = await untouched.ask("POST", PATH, {"document": document, "apply": True})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "#/document"
    for known in ("mcpServers", "mcp.servers", "Codex", "server.json"):
        assert known in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"document": 1}, "#/document"),
        ({"document": []}, "#/document"),
        ({"document": "ü" * (3 * 2**19) + "x"}, "#/document"),
        ({"document": {"mcpServers": {"a": "x" * (3 * 2**20)}}}, "#/document"),
        ({"env": {"A": 1}}, "#/env/A"),
        ({"env": {"": "x"}}, "#/env"),
        ({"apply": "true"}, "#/apply"),
        ({"dry": True}, "#/dry"),
    ],
)
async def test_a_body_that_does_not_fit_is_422(untouched, change, pointer):
    answer = await untouched.ask("POST", PATH, {"document": servers(), **change})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    "document",
    [
        servers(a=None, b={"command": {"x": 1}}, c={"command": "x", "env": [1], "args": 5}, d={"command": [1]}),
        {"mcp_servers": {"a": {"command": "x", "env_vars": 5}, "b": {"command": "x", "env_vars": [1, None]}}},
        {"name": "io.x/y", "packages": [{"registryType": ["npm"]}, 1, {"registryType": {}, "identifier": []}]},
        {"servers": [1, None, {"name": "x", "packages": 1}, {"server": []}]},
    ],
)
async def test_odd_entries_are_problems_and_no_failure(untouched, document):
    answer = await untouched.ask("POST", PATH, {"document": document})
    assert answer.status_code == 200, answer.text


async def test_what_placeholders_grow_to_is_bounded(untouched):
    many = servers(a={"command": "x", "args": ["${A}" * 10_000]})
    nested: dict[str, Any] = {"default": "x"}
    for _ in range(10):  # variables of variables of variables
        nested = {"value": "{v}" * 10, "variables": {"v": nested}}
    package = {"registryType": "npm", "identifier": "x", "packageArguments": [{"type": "positional", **nested}]}
    for document in (many, {"name": "io.x/y", "packages": [package]}):
        (entry,) = (await untouched.ask("POST", PATH, {"document": document, "env": {"A": "x" * 60_000}})).json()[
            "entries"
        ]
        assert len(str(entry)) < 1000
        assert (entry["outcome"] == "skipped") is (document is many)


async def test_commands_are_only_for_platform_administrators(untouched):
    admin = await untouched.key("acme", "tenant:admin")
    body = {"document": servers(a={"command": "cat"}), "apply": True}
    (entry,) = (await untouched.ask("POST", PATH, body, key=admin)).json()["entries"]
    assert (entry["outcome"], entry["problems"]) == ("skipped", ["this needs the scope platform:admin"])
    reader = await untouched.key("acme", "tenant:read")
    assert (await untouched.ask("POST", PATH, body, key=reader)).status_code == 403
    for tenant in ("zenith", "nobody"):
        answer = await untouched.ask("POST", f"/api/v1/tenants/{tenant}/backends:import", body, key=admin)
        assert answer.status_code == 404
    assert (await untouched.ask("POST", "/api/v1/tenants/nobody/backends:import", body)).status_code == 404
    assert untouched.heard == []
