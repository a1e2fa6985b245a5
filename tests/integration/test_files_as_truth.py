"""Files as truth: what a file says is what a real gateway has, secrets included, with the real command."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli.files.carrying_out import Stopped, carry_out
from app.cli.files.gateway_file import read_files
from app.cli.files.plan import make_plan
from app.cli.rest import Rest
from app.protocol.openapi.document import mark_of
from app.text.strict_yaml import read, written
from tests.certificates import authority, issued
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.test_cli_rest import Line
from tests.integration.toolboxes import TOOLBOX
from tests.protocol.openapi.documents import PETS, SHOP

SECRETS = {"NOTES_TOKEN": "s3cret-of-notes", "FAR_KEY": "s3cret-of-far", "IDP_SECRET": "s3cret-of-idp-" + "x" * 32}


def everything(tenant: str) -> dict:
    """A file with something of every kind."""
    return {
        "version": 1,
        "tenants": {
            tenant: {
                "limits": {"sessions": 20, "burst": None},
                "sandbox_exempt": True,
                "backends": {
                    "box": {"command": TOOLBOX[0], "args": [*TOOLBOX[1:], "box"], "timeouts": {"call_s": 90}},
                    "notes": {
                        "command": sys.executable,
                        "env": {"TOKEN": "${env:NOTES_TOKEN}", "LEVEL": "info"},
                        "limits": {"memory_mb": None, "pids": 32},
                        "sandbox": {"network": "web", "read": ["/usr/share"]},
                        "enabled": False,
                        "reason": "not yet",
                    },
                    "far": {
                        "url": "https://far.example/mcp",
                        "headers": {"Authorization": "Bearer ${env:FAR_KEY}"},
                        "rename": {"a": "b"},
                        "include": ["a*"],
                    },
                },
                "guides": {"style": {"title": "Style", "text": "# Style\n\nBe brief: `yes`.\n"}},
                "toolsets": {"all": {"members": [{"backend": "box", "prefix": "b_"}], "guides": ["sty*"]}},
                "recipes": {
                    "twice": {
                        "toolset": "all",
                        "steps": [{"id": "one", "tool": "b_say", "arguments": {"text": '`"x"`'}}],
                        "output": {"sum": "steps.one.result"},
                    }
                },
                "issuers": {
                    "https://idp.example": {"algorithms": ["HS256"], "secret": "${env:IDP_SECRET}"},
                    "https://keys.example": {
                        "algorithms": ["RS256"],
                        "jwks_url": "https://keys.example/jwks",
                        "claims": {"groups": "groups", "map": {"staff": ["mcp:connect"]}},
                        "max_scopes": ["tenant:read", "mcp:connect"],
                    },
                },
            }
        },
    }


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("files") / "data") as gateway:
        yield gateway


class Files(Line):
    """A shell with files, and the secrets that they name."""

    def put(self, document: dict, name: str = "gateway.yaml") -> str:
        path = self.folder / name
        path.write_text(written(document))
        return str(path)

    def apply(self, path: str, *words: str, code: int = 0, **changes: str):
        return self.run("apply", "-f", path, *words, code=code, **{**SECRETS, **changes})

    def plan(self, path: str, *words: str, **changes: str) -> list[dict]:
        done = self.run("plan", "-f", path, "--json", *words, code=0, **{**SECRETS, **changes})
        return json.loads(done.stdout)["steps"]


@pytest.fixture
def files(gateway: Gateway, tmp_path: Path) -> Files:
    return Files(tmp_path, gateway.url, gateway.admin_key)


def secret_in(*texts: str) -> list[str]:
    return [secret for secret in SECRETS.values() for text in texts if secret in text]


def test_a_file_is_applied_once_and_the_second_time_changes_nothing(files, gateway):
    path = files.put(everything("once"))
    planned = files.run("plan", "-f", path, **SECRETS)
    assert "+ backend once/notes" in planned.stdout
    assert "    env.TOKEN: ***" in planned.stdout
    assert "9 to make, 0 to change, 0 to remove; 0 as the files say" in planned.stdout
    assert gateway.api("GET", "/tenants/once", expect=404)
    assert files.apply(path, "--check", code=2).stdout == planned.stdout
    refused = files.apply(path, code=2)
    assert "give --yes" in refused.stderr
    assert gateway.api("GET", "/tenants/once", expect=404)

    made = files.apply(path, "--yes")
    lines = made.stderr.splitlines()
    assert lines[1:] == [
        "made tenant once", "made backend once/box", "made backend once/notes", "made backend once/far",
        "made guide once/style", "made toolset once/all", "made recipe once/twice",
        "made issuer once/https://idp.example", "made issuer once/https://keys.example",
        "trunkline: 9 made, 0 changed, 0 removed",
    ]  # fmt: skip
    assert not secret_in(planned.stdout, planned.stderr, made.stdout, made.stderr)
    assert gateway.api("GET", "/tenants/once")["limits"]["sessions"] == 20
    assert gateway.api("GET", "/tenants/once/toolsets/all")["recipes"] == ["twice"]

    versions = [each["version"] for each in gateway.api("GET", "/tenants/once/backends")["items"]]
    again = files.apply(path, "--yes")
    assert again.stdout == "nothing differs: 9 as the files say\n"
    assert files.apply(path, "--check").stdout == again.stdout
    assert [each["version"] for each in gateway.api("GET", "/tenants/once/backends")["items"]] == versions


def test_a_document_of_openapi_is_the_text_of_its_file(files, gateway, tmp_path):
    shop = {"url": "https://shop.example/v1", "openapi": "shop.json", "headers": {"Authorization": "${env:FAR_KEY}"}}
    pets = {"openapi": "pets.json"}  # its document says where it is
    path = files.put({"version": 1, "tenants": {"apis": {"backends": {"shop": shop, "pets": pets}}}})
    assert "cannot read" in files.apply(path, "--yes", code=2).stderr
    (tmp_path / "pets.json").write_text(json.dumps(PETS))
    (tmp_path / "shop.json").write_text(json.dumps(SHOP))
    files.apply(path, "--yes")
    assert gateway.api("GET", "/tenants/apis/backends/pets")["url"] == "https://pets.example/api"
    assert files.apply(path, "--yes").stdout == "nothing differs: 3 as the files say\n"
    (tmp_path / "shop.json").write_text(json.dumps({**SHOP, "info": {"title": "Other"}}))
    (step,) = files.plan(path)
    assert [change["path"] for change in step["changes"]] == ["openapi"]
    files.apply(path, "--yes")
    assert files.apply(path, "--yes").stdout == "nothing differs: 3 as the files say\n"
    exported = files.run("export", "--tenant", "apis").stdout
    assert mark_of((tmp_path / "shop.json").read_bytes()) in exported


def test_an_export_applied_to_an_empty_gateway_exports_the_same(files, gateway, tmp_path):
    files.apply(files.put(everything("round")), "--yes")
    first = files.run("export", "--tenant", "round")
    assert not secret_in(first.stdout)
    variables = [line[4:] for line in first.stdout.splitlines() if line.startswith("#   ")]
    assert variables == [
        "ROUND_FAR_AUTHORIZATION",
        "ROUND_NOTES_LEVEL",
        "ROUND_NOTES_TOKEN",
        "ROUND_HTTPS_IDP_EXAMPLE_SECRET",
    ]
    values = dict(zip(variables, ["Bearer x", "info", "t", "y" * 40], strict=True))
    path = str(tmp_path / "exported.yaml")
    files.run("export", "--tenant", "round", "-o", path)
    assert Path(path).read_text() == first.stdout

    with running_gateway(tmp_path / "other") as other:
        there = {"TRUNKLINE_URL": other.url, "TRUNKLINE_KEY": other.admin_key, **values}
        missing = files.run(
            "apply", "-f", path, "--yes", code=2, TRUNKLINE_URL=other.url, TRUNKLINE_KEY=other.admin_key
        )
        assert "the environment variable ROUND_NOTES_TOKEN is not set" in missing.stderr
        files.run("apply", "-f", path, "--yes", **there)
        assert files.run("export", "--tenant", "round", **there).stdout == first.stdout
        assert files.run("apply", "-f", path, "--check", **there).stdout == "nothing differs: 9 as the files say\n"
    # What was exported is also what this gateway has, but for the secrets, which nobody has filled in rightly.
    steps = files.plan(path, **values)
    assert [(step["action"], step["name"]) for step in steps] == [
        ("change", "far"), ("change", "notes"), ("change", "https://idp.example")
    ]  # fmt: skip
    assert [change["path"] for step in steps for change in step["changes"]] == [
        "headers.Authorization", "env.TOKEN", "secret"
    ]  # fmt: skip


def test_how_a_server_is_connected_to(files, gateway):
    root, other = authority("root"), authority("other")
    ours, new = issued(root, "ours.example"), issued(root, "ours.example")
    for name, one in (("root.pem", root.pem), ("ours.key", ours.key), ("new.key", new.key)):
        (files.folder / name).write_text(one)
    connect = {
        "ca": "${file:root.pem}", "certificate": ours.pem, "key": "${file:ours.key}",
        "proxy": "http://10.0.0.1:3128", "proxy_auth": "me:${env:FAR_KEY}",
    }  # fmt: skip
    far = {"url": "https://far.example/mcp", "headers": {"X-Key": "${env:FAR_KEY}"}, "connect": connect}
    document: dict = {"version": 1, "tenants": {"company": {"backends": {"far": far}}}}
    made = files.apply(files.put(document), "--yes")
    assert 'connect.proxy: "http://10.0.0.1:3128"' in made.stdout
    assert "connect.key: ***" in made.stdout
    path = files.put(document)
    assert files.apply(path, "--check").stdout == "nothing differs: 2 as the files say\n"
    exported = files.run("export", "--tenant", "company").stdout
    assert not secret_in(exported)
    assert not any(line in made.stdout + made.stderr + exported for line in ours.key.splitlines()[1:-1])
    shown = read(exported).value["tenants"]["company"]["backends"]["far"]["connect"]
    assert shown == {
        "ca": root.pem, "certificate": ours.pem, "proxy": "http://10.0.0.1:3128",
        "key": "${env:COMPANY_FAR_KEY}", "proxy_auth": "${env:COMPANY_FAR_PROXY_AUTH}",
    }  # fmt: skip

    connect |= {"key": "${file:new.key}", "certificate": new.pem}
    steps = files.plan(files.put(document))
    assert [change["path"] for step in steps for change in step["changes"]] == ["connect.certificate", "connect.key"]
    files.apply(files.put(document), "--yes")
    connect |= {"ca": other.pem, "proxy": "http://10.0.0.2:3128"}
    del connect["certificate"], connect["key"]
    changed = files.apply(files.put(document), "--yes").stdout
    assert 'connect.proxy: "http://10.0.0.1:3128" → "http://10.0.0.2:3128"' in changed
    assert "connect.key: *** → nothing" in changed
    assert files.apply(path, "--check").returncode == 0
    assert gateway.api("GET", "/tenants/company/backends/far")["connect"] == {
        "proxy": "http://10.0.0.2:3128", "proxy_auth": "***", "ca": other.pem, "certificate": None, "key": None,
    }  # fmt: skip
    del far["connect"]
    files.apply(files.put(document), "--yes")
    assert gateway.api("GET", "/tenants/company/backends/far")["certificates"] == []


def test_changes_are_told_field_by_field_and_only_they_are_made(files, gateway):
    document = everything("fields")
    files.apply(files.put(document), "--yes")
    tenant = document["tenants"]["fields"]
    tenant["limits"]["sessions"] = 30
    tenant["backends"]["box"] |= {"timeouts": {"call_s": 30, "idle_s": 60}}
    del tenant["backends"]["notes"]["env"]["LEVEL"]
    tenant["backends"]["far"]["url"] = "https://elsewhere.example/mcp"
    tenant["guides"]["style"]["text"] = "# Style\n\nBe verbose.\n"
    tenant["recipes"]["twice"]["output"] = {"total": "steps.one.result"}
    tenant["issuers"]["https://keys.example"]["claims"]["map"] = {"all": ["mcp:connect"]}
    path = files.put(document)
    planned = files.run("plan", "-f", path, **SECRETS)
    shown = [line.strip() for line in planned.stdout.splitlines()]
    for line in (
        "limits.sessions: 20 → 30", "timeouts.call_s: 90.0 → 30.0", "timeouts.idle_s: 1800.0 → 60.0",
        "env.LEVEL: *** → nothing", 'url: "https://far.example/mcp" → "https://elsewhere.example/mcp"',
        "text: 3 lines → 3 lines, differing from line 3 on", 'output.sum: "steps.one.result" → null',
        'claims.map.staff: ["mcp:connect"] → null', "0 to make, 7 to change, 0 to remove; 2 as the files say",
    ):  # fmt: skip
        assert line in shown, planned.stdout
    files.apply(path, "--yes")
    assert files.apply(path, "--check").returncode == 0
    assert gateway.api("GET", "/tenants/fields/backends/notes")["env"] == {"TOKEN": "***"}
    assert gateway.api("GET", "/tenants/fields/recipes/twice")["output"] == {"total": "steps.one.result"}
    assert gateway.api("GET", "/tenants/fields/guides/style")["text"] == "# Style\n\nBe verbose.\n"


def test_another_secret_differs_and_is_replaced(files):
    path = files.put(everything("secret"))
    files.apply(path, "--yes")
    files.apply(path, "--check", code=2, NOTES_TOKEN="another")
    (step,) = files.plan(path, FAR_KEY="another")
    assert step["changes"] == [{"path": "headers.Authorization", "old": "***", "new": "***"}]
    changed = files.apply(path, "--yes", NOTES_TOKEN="another-s3cret", IDP_SECRET="z" * 40)
    assert "env.TOKEN: *** → *** (another value)" in changed.stdout
    assert "2 changed" in changed.stderr
    assert "another-s3cret" not in changed.stdout + changed.stderr
    files.apply(path, "--check", NOTES_TOKEN="another-s3cret", IDP_SECRET="z" * 40)
    files.apply(path, "--check", code=2)


def test_what_no_file_names_is_left_alone_but_with_prune_in_its_sections(files, gateway):
    document = everything("prune")
    files.apply(files.put(document), "--yes")
    gateway.api("POST", "/tenants/prune/backends", {"name": "hand-made", "command": "cat"})
    gateway.api("POST", "/tenants/prune/guides", {"name": "hand-made", "text": "x"})
    path = files.put(document)
    assert files.plan(path) == []
    del document["tenants"]["prune"]["guides"]
    document["tenants"]["prune"]["toolsets"] = None
    document["tenants"]["prune"]["recipes"] = {}
    # The name of a toolset that goes is free for a backend that comes, and the other way round.
    document["tenants"]["prune"]["backends"]["all"] = {"command": "cat"}
    path = files.put(document)
    steps = [(step["action"], step["kind"], step["name"]) for step in files.plan(path, "--prune")]
    assert steps == [
        ("remove", "recipe", "twice"), ("remove", "toolset", "all"), ("make", "backend", "all"),
        ("remove", "backend", "hand-made"),
    ]  # fmt: skip
    done = files.apply(path, "--prune", "--yes")
    assert "removed backend prune/hand-made" in done.stderr
    assert [each["name"] for each in gateway.api("GET", "/tenants/prune/guides")["items"]] == ["hand-made", "style"]
    assert files.plan(path, "--prune") == []


def test_what_somebody_has_switched_off_stays_off_while_no_file_says_otherwise(files, gateway):
    document = everything("switch")
    path = files.put(document)
    files.apply(path, "--yes")
    gateway.api("PATCH", "/tenants/switch/backends/box", {"enabled": False, "reason": "crash loop"})
    assert files.plan(path) == []
    document["tenants"]["switch"]["backends"]["box"]["enabled"] = True
    path = files.put(document)
    assert [change["path"] for step in files.plan(path) for change in step["changes"]] == ["enabled"]
    files.apply(path, "--yes")
    assert gateway.api("GET", "/tenants/switch/backends/box")["reason"] == ""
    document["tenants"]["switch"] |= {"enabled": False, "reason": "moved"}
    files.apply(files.put(document), "--yes")
    assert gateway.api("GET", "/tenants/switch")["reason"] == "moved"
    new = {"tenants": {"born-off": {"enabled": False, "reason": "soon"}}}
    assert "1 made, 1 changed" in files.apply(files.put(new), "--yes").stderr
    assert files.apply(files.put(new), "--check").returncode == 0


def test_a_failure_half_way_says_what_is_done_and_applying_again_goes_on(files, gateway):
    document = everything("half")
    document["tenants"]["half"]["recipes"]["twice"]["steps"][0]["tool"] = "b_nothing"
    failed = files.apply(files.put(document), "--yes", code=1).stderr
    assert "failed at recipe half/twice" in failed
    assert "done: 6 of 9" in failed
    assert "    made toolset half/all" in failed
    assert "not done: 3" in failed
    assert "    issuer half/https://idp.example, to make" in failed
    assert "apply the same files again to go on" in failed
    done = files.apply(files.put(everything("half")), "--yes")
    assert "3 made, 0 changed, 0 removed" in done.stderr


def test_files_folders_and_stdin_are_one_and_say_which_line_is_wrong(files, tmp_path):
    document = everything("folder")
    tenant = document["tenants"]["folder"]
    (tmp_path / "many").mkdir()
    first = {"tenants": {"folder": {name: tenant.pop(name) for name in ("backends", "guides")}}}
    files.put(first, "many/a.yaml")
    (tmp_path / "many/b.json").write_text(json.dumps(document, indent="\t"))
    files.apply(str(tmp_path / "many"), "--yes")
    stdin = files.run("apply", "-f", "-", "--check", stdin=written(everything("folder")), **SECRETS)
    assert stdin.stdout == "nothing differs: 9 as the files say\n"
    files.put(first, "many/c.yml")
    twice = files.apply(str(tmp_path / "many"), code=2).stderr
    assert f"c.yml:4: tenants.folder.backends.box: this backend is in {tmp_path}/many/a.yaml:" in twice
    (tmp_path / "bad.yaml").write_text("tenants:\n  acme:\n    backends:\n      time: {comand: x}\n")
    bad = files.apply(str(tmp_path / "bad.yaml"), "--check", code=1).stderr
    assert "bad.yaml:4: tenants.acme.backends.time.comand: there is no such member; did you mean `command`?" in bad


def test_secrets_from_files_beside_the_file(files, gateway, tmp_path):
    (tmp_path / "token").write_text("from-a-file\n")
    backend = {"command": "cat", "env": {"T": "a-${file:token}-$${x}"}}
    path = files.put({"tenants": {"beside": {"backends": {"b": backend}}}})
    files.apply(path, "--yes")
    different = gateway.api("POST", "/tenants/beside/backends/b:compare", {"env": {"T": "a-from-a-file-${x}"}})
    assert different == {"different": []}
    assert files.apply(path, "--check").returncode == 0
    (tmp_path / "token").unlink()
    assert "cannot read" in files.apply(path, code=2).stderr


def test_a_tenants_administrator_applies_what_is_his(files, gateway):
    gateway.add_tenant("own", sessions=5)
    key = gateway.key("own", ["tenant:admin"])
    file = {
        "tenants": {
            "own": {
                "backends": {"far": {"url": "https://far.example/mcp", "headers": {"X-Key": "${env:FAR_KEY}"}}},
                "guides": {"g": {"text": "hello"}},
            }
        }
    }
    path = files.put(file)
    files.apply(path, "--yes", TRUNKLINE_KEY=key)
    assert files.apply(path, "--check", TRUNKLINE_KEY=key).returncode == 0
    file["tenants"]["own"]["limits"] = {}
    refused = files.apply(files.put(file), "--yes", code=1, TRUNKLINE_KEY=key).stderr
    assert "done: 0 of 1" in refused
    assert "platform:admin" in refused
    elsewhere = files.put({"tenants": {"default": {"guides": {}}}})
    assert "done: 0 of" in files.apply(elsewhere, "--yes", code=1, TRUNKLINE_KEY=key).stderr


def test_the_file_of_an_export_is_read_strictly(files):
    files.apply(files.put(everything("strict")), "--yes")
    document = read(files.run("export").stdout).value
    assert set(document) == {"version", "tenants"}
    assert {"default", "strict"} <= set(document["tenants"])
    assert document["tenants"]["strict"]["toolsets"]["all"]["members"] == [{"backend": "box", "prefix": "b_"}]
    assert document["tenants"]["strict"]["limits"] == {"sessions": 20, "burst": None}
    assert "there is no tenant nowhere" in files.run("export", "--tenant", "nowhere", code=1).stderr


def test_an_issuer_of_the_platform_goes_round(files, gateway):
    gateway.add_tenant("served")
    issuer: dict[str, Any] = {
        "algorithms": ["RS256", "RS256"],
        "discovery_url": "https://login.example/.well-known/openid-configuration",
        "audience": ["api://gateway"],
        "claims": {"groups": "groups"} | {"map": {"staff": ["mcp:connect"]}},
        "tenants": {"claim": "groups", "map": {"a": "served"}},
        "sign_in": {"client_id": "console"},
    }
    path = files.put({"tenants": {"default": {"issuers": {"https://login.example": issuer}}}})
    files.apply(path, "--yes")
    assert files.plan(path) == []
    exported = read(files.run("export", "--tenant", "default").stdout).value["tenants"]["default"]["issuers"]
    shown = exported["https://login.example"]
    assert (shown["sign_in"], shown["algorithms"]) == (
        {"client_id": "console", "scope": "openid", "token": "access_token", "parameters": {}},
        ["RS256"],
    )
    assert files.plan(files.put({"tenants": {"default": {"issuers": exported}}})) == []
    issuer["sign_in"] = {"client_id": "other", "scope": "openid profile"}
    issuer["tenants"]["map"] = {"b": {"tenant": "served", "scopes": ["mcp:connect"]}}
    path = files.put({"tenants": {"default": {"issuers": {"https://login.example": issuer}}}})
    files.apply(path, "--yes")
    assert files.plan(path) == []


def test_a_change_between_plan_and_apply_is_noticed_and_not_overwritten(files, gateway, monkeypatch):
    said = list[str]()
    path = files.put(everything("race"))
    files.apply(path, "--yes")
    document = everything("race")
    document["tenants"]["race"]["backends"]["box"]["timeouts"] = {"call_s": 30}
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with httpx2.Client(headers={"Authorization": f"Bearer {gateway.admin_key}"}, timeout=60) as client:
        rest = Rest(gateway.url, client, is_patient=True)
        plan = make_plan(rest, read_files([files.put(document)], SECRETS), prune=False)
        gateway.api("PATCH", "/tenants/race/backends/box", {"timeouts": {"call_s": 45}})
        with pytest.raises(Stopped, match="changed since the plan was made, and nothing of that was overwritten"):
            carry_out(rest, plan, begin=said.append, say=said.append)
        assert gateway.api("GET", "/tenants/race/backends/box")["timeouts"]["call_s"] == 45
        # Who finds that somebody has done the same is done.
        gateway.api("PATCH", "/tenants/race/backends/box", {"timeouts": {"call_s": 30}})
        carry_out(rest, plan, begin=said.append, say=said.append)


SHOWN = ["--api-key", "***", "--at", "postgres://shop:***@db.internal/shop"]


def test_secrets_in_arguments_and_addresses_are_kept_compared_and_never_shown(files, gateway):
    args = ["--api-key", "${env:NOTES_TOKEN}", "--at", "postgres://shop:${env:FAR_KEY}@db.internal/shop"]
    url = "https://far.example/mcp?token=${env:FAR_KEY}"
    backends: dict[str, dict[str, Any]] = {"pg": {"command": "true", "args": args}, "far": {"url": url}}
    path = files.put({"version": 1, "tenants": {"parts": {"backends": backends}}})
    said = [files.apply(path, "--yes").stdout]
    assert files.plan(path) == []
    planned = files.run("plan", "-f", path, **{**SECRETS, "NOTES_TOKEN": "another-s3cret"})
    said.append(planned.stdout)
    assert "args: *** → *** (another value)" in planned.stdout
    assert "0 to make, 1 to change, 0 to remove" in planned.stdout
    assert "url: *** → ***" in files.run("plan", "-f", path, **{**SECRETS, "FAR_KEY": "another-s3cret"}).stdout
    files.apply(path, "--yes", NOTES_TOKEN="another-s3cret")
    assert [each["name"] for each in files.plan(path)] == ["pg"]
    files.apply(path, "--yes")
    # A mark in the file stands for what is there; an export has references instead.
    shown = {"pg": {**backends["pg"], "args": SHOWN}, "far": {"url": "https://far.example/mcp?token=***"}}
    assert files.plan(files.put({"version": 1, "tenants": {"parts": {"backends": shown}}}, "marks.yaml")) == []
    exported = files.folder / "exported.yaml"
    exported.write_text(files.run("export", "--tenant", "parts", code=0).stdout)
    assert "postgres://shop:${env:PARTS_PG_ARGS_2}@db.internal/shop" in exported.read_text()
    values = {"PARTS_PG_ARGS": SECRETS["NOTES_TOKEN"], "PARTS_PG_ARGS_2": SECRETS["FAR_KEY"]}
    assert files.plan(str(exported), **values, PARTS_FAR_URL=SECRETS["FAR_KEY"]) == []
    found = [gateway.api("GET", f"/tenants/parts/backends/{name}") for name in backends]
    assert found[0]["args"] == SHOWN
    said.append(json.dumps(found))
    assert secret_in(*said, exported.read_text(), json.dumps(gateway.api("GET", "/tenants/parts/audit"))) == []
