"""Everything that can be stored over REST is exported as a file that changes nothing: here, and on an empty gateway.

Generated from the models of the bodies: a new member is tried as soon as it is there.
"""

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import BaseModel, ValidationError

from app.admin.schemas.tenants import TenantBody
from app.cli.files.carrying_out import carry_out
from app.cli.files.current import CurrentTenant, read_tenant
from app.cli.files.exporting import export
from app.cli.files.gateway_file import read_files
from app.cli.files.kinds import KINDS, Kind
from app.cli.files.plan import make_plan
from app.cli.rest import Rest
from tests.admin.rig import Rig, open_rig
from tests.auth.test_client_keys import P256, pem, with_certificate
from tests.certificates import authority, issued
from tests.databases import migrated_file
from tests.protocol.toolset.offers import offer, tool

ROOT = authority("an authority: #1")
OURS = issued(ROOT)
# What readers of YAML take for something else, or cannot write plainly.
TEXTS = (
    "", "x", " a ", "no", "on", "null", "~", "1.50", "010", "1_000", "0x1f", ".nan", "2026-01-01", "a: b", "- a", "#a",
    "<<", "=", "*a", "!a", "'", '"', "a\nb", "a\n\n b \n", "\n a", "\ta\n", "a\r\nb", "ü漢😀", "\u2028\x85\ufeff",
    "\x00", "\x1b", "${env:HOME}", "$${env:HOME}", "${x}", "https://a.example/b", "/a", "x" * 200 + " y" * 100, "*",
)  # fmt: skip
ODD = {
    "type": "object", "null": None, "zero": 0, "float": 1e-7, "large": 1.5e300, "u64": 2**64 - 1, "i64": -(2**63),
    "negative": -0.0, "empty": {}, "none": [], "nested": [[{"a": [None, True, {"": "x"}]}]], "properties": {},
    "texts": {text: text for text in TEXTS if text != "\x00"},
}  # fmt: skip
FILE = "/opt/a b/c"  # it is there, on the gateway's machine
AT_ONCE = 50  # a tenant has at most so many issuers
# Those of which YAML reads something else come first.
NAMES = ("no", "null", "010", "1e5", "0x1f", "2026-01-01", "y", "true", *(f"n{number}" for number in range(AT_ONCE)))
UNSENT = {"id", "tenant", "version", "created_at", "changed_at", "off_by_platform"}
OFF = {"enabled": False, "reason": "x: y #z"}
STEP = {"id": "one", "tool": "b_say"}
BASES: Mapping[str, tuple[dict[str, Any], ...]] = {
    "backends": (
        {"command": "x"}, {"url": "https://a.example/mcp"}, {"command": "x", **OFF},
        {"command": "x", "sandbox": {"mode": "require"}}, {"command": "x", "timeouts": {"park_s": 600}},
    ),
    "guides": ({"text": "x"},),
    "toolsets": ({}, {"members": [{"backend": "base"}]}, OFF),
    "recipes": ({"toolset": "all", "steps": [STEP]},),
    "issuers": (
        {"algorithms": ["HS256"], "secret": "x" * 32},
        {"algorithms": ["RS256"], "jwks_url": "https://a.example/k", "max_scopes": ["tenant:read", "mcp:connect"]},
        {"algorithms": ["RS256"], "discovery_url": "https://a.example/d", "sign_in": {"client_id": "x"}},
        {
            "algorithms": ["RS256"], "discovery_url": "https://a.example/d",
            "sign_in": {"client_id": "x", "client_secret": "s", "parameters": {"prompt": "010"}},
        },
    ),
}  # fmt: skip
# Values that no schema can say.
EXAMPLES: Mapping[str, tuple[Any, ...]] = {
    "rename": ({text: f"n{number}" for number, text in enumerate(TEXTS) if text and "\0" not in text},),
    "describe": ({text: text for text in TEXTS if text and "\0" not in text and len(text) < 200},),
    "claims": ({"groups": "g", "map": {"a: b": ["mcp:connect"], "no": []}}, {"subject": "a.b", "tenant": "t"}),
    "include": (["*", "010", "${env:A}"],),
    "steps": (
        [{**STEP, "arguments": {"a": None, "b": {"c": [None, "`1`"]}}, "condition": "`true` && input"}],
        [[STEP, {**STEP, "id": "two"}], {**STEP, "id": "three"}],
        [[STEP]],
        [{**STEP, "question": {"message": "'a\nb'", "requested_schema": {"type": "object"}, "if_declined": "skip"}}],
        [{**STEP, "question": {"message": "'a'"}}],
    ),
    "output": (0, False, [], {}, {"a": None}, "`null`", [None], -0.0, 2**64 - 1),
    "input_schema": (ODD, {"type": "object"}, {"type": "object", "properties": {"type": {"type": "object"}}}),
    "members": ([{"backend": "base", "prefix": "", "rename": {"010": "a"}}], [{"backend": "base", "include": ["no"]}]),
    "command": (FILE,),
    "toolset": ("other",),
    "algorithms": (["HS256", "HS256"], ["RS256", "ES256", "RS256"]),
    "max_scopes": (["tenant:admin", "mcp:connect"],),
    "require": (["files"], ["processes", "files"]),
    "network": ("web", {"allow": ["db.internal:5432", "[fd00::7]:1"]}, {"allow": ["10.20.0.0/16:443"], "web": True}),
    "network_allow": (["db.internal:5432"],),
    "packages_allow": (["npm:@acme/*", "oci:mcp/time"],),
    "read": (["/a b", "/010"],),
    "jwks_url": ("https://a.example/k",),
    "discovery_url": ("https://a.example/d?a=b",),
    "env": ({"A": "x", "no": "y"},),
    "headers": ({"X-A": "x", "No": "y"},),
    "connect": (
        {"ca": OURS.pem + ROOT.pem},
        {"certificate": OURS.pem, "key": OURS.key},
        {"proxy": "https://proxy.example", "proxy_auth": "me:pass"},
    ),
}
APART = {"openapi"}  # an export has what a document is known by: tests/integration/test_files_as_truth.py
NAMING = {"toolset", "steps", "members", "jwks_url", "discovery_url"}  # what there is: the examples only


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rest, Rest]]:
    """Two gateways without anything that runs, and their REST APIs."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        found = []
        for name in ("here", "there"):
            path = tmp_path_factory.mktemp(name) / "test.db"
            path.write_bytes(migrated_file())
            rig = stack.enter_context(portal.wrap_async_context_manager(open_rig(f"sqlite:///{path}")))
            rig.admin.rates._rate = rig.admin.rates._burst = 1e9
            found.append(Rest(f"http://{name}", httpx2.Client(transport=Direct(rig, portal)), is_patient=True))
            stack.callback(found[-1].client.close)
        yield found[0], found[1]


class Direct(httpx2.BaseTransport):
    """Requests of a client that waits, to a gateway in another thread's loop."""

    def __init__(self, rig: Rig, portal: BlockingPortal) -> None:
        self.rig, self.portal = rig, portal

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST" and request.url.path.endswith("/toolsets"):  # its members have been asked
            tenant = request.url.path.split("/")[-2]
            self.rig.offers.known[tenant, "base"] = offer("base", tools=[tool("say")])
        headers = {name: value for name, value in request.headers.items() if name.startswith(("if-", "x-"))}
        path, content = request.url.raw_path.decode(), request.content or None
        ask = partial(self.rig.ask, request.method, path, content=content, headers=headers)
        answer = self.portal.call(ask)
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.section)
def test_objects_with_any_value_of_any_member_go_round(gateways, tmp_path: Path, monkeypatch, kind: Kind) -> None:
    monkeypatch.setattr(os.path, "isfile", lambda path, real=os.path.isfile: path == FILE or real(path))
    here, there = gateways
    bodies = _bodies(kind)
    for start in range(0, len(bodies), AT_ONCE):
        tenant = f"{kind.section}-{start}"
        _prepare(here, tenant)
        for name, body in zip(NAMES, bodies[start : start + AT_ONCE], strict=False):
            here.ask("POST", f"/tenants/{tenant}/{kind.section}", {kind.named_by: name, **body})
        _require_round_trip(here, there, tenant, tmp_path)


def test_tenants_with_any_value_of_any_member_go_round(gateways, tmp_path: Path) -> None:
    here, there = gateways
    for number, members in enumerate(_packed({}, TenantBody, "name", TEXTS)[0]):
        here.ask("POST", "/tenants", {"name": f"t{number}", **members})
        _require_round_trip(here, there, f"t{number}", tmp_path)
    here.ask("POST", "/tenants", {"name": "off"})
    here.ask("PATCH", "/tenants/off", OFF)
    _require_round_trip(here, there, "off", tmp_path)


def _prepare(rest: Rest, tenant: str) -> None:
    rest.ask("POST", "/tenants", {"name": tenant})
    rest.ask("POST", f"/tenants/{tenant}/backends", {"name": "base", "command": "x"})
    for name in ("all", "other"):
        members = [{"backend": "base", "prefix": "b_"}]
        rest.ask(
            "POST", f"/tenants/{tenant}/toolsets", {"name": name, "members": members, "timeouts": {"call_s": 4000}}
        )


def _require_round_trip(here: Rest, there: Rest, tenant: str, folder: Path) -> None:
    sections = tuple(kind.section for kind in KINDS)
    exported = export([read_tenant(here, tenant, sections)])
    (folder / "gateway.yaml").write_text(exported.text())
    kinds = {"_KEY": OURS.key, "_PROXY_AUTH": "me:another"}  # other secrets have no form
    filled = {
        name: next((each for end, each in kinds.items() if name.endswith(end)), f"{name}-{'x' * 32}")
        for name in exported.variables
    }
    wanted = read_files([str(folder / "gateway.yaml")], filled)
    steps = make_plan(here, wanted, prune=True).steps
    changed = [change for step in steps for change in step.changes if not change.is_secret]
    assert not changed, (steps[0].what, changed)
    carry_out(there, make_plan(there, wanted, prune=True), begin=_quiet, say=_quiet)
    assert not make_plan(there, wanted, prune=True).steps
    again = export([read_tenant(there, tenant, sections)])
    assert again.text() == exported.text()
    assert _stored(read_tenant(there, tenant, sections)) == _stored(read_tenant(here, tenant, sections))


def test_another_client_secret_is_noticed_and_sent_and_one_that_the_file_has_not_goes(gateways, tmp_path: Path) -> None:
    here, _ = gateways
    here.ask("POST", "/tenants", {"name": "signing"})
    file = tmp_path / "gateway.yaml"

    def steps(url: str = "https://a.example/d", secret: str = "", **environ: str) -> list[Sequence[str]]:
        client = {"client_id": "x"} | ({"client_secret": secret} if secret else {})
        issuer = {"algorithms": ["RS256"], "discovery_url": url, "sign_in": client}
        file.write_text(json.dumps({"tenants": {"signing": {"issuers": {"https://a.example": issuer}}}}))
        plan = make_plan(here, read_files([str(file)], environ), prune=True)
        carry_out(here, plan, begin=_quiet, say=_quiet)
        told = [change.line() for step in plan.steps for change in step.changes]
        assert not [line for line in told for value in environ.values() if value in line]
        return [[change.path for change in step.changes] for step in plan.steps]

    reference, moved = "${env:OF_CLIENT}", "https://b.example/d"
    assert len(steps(secret=reference, OF_CLIENT="the first")) == 1
    assert steps(secret=reference, OF_CLIENT="the first") == []
    assert steps(secret=reference, OF_CLIENT="the second") == [["sign_in.client_secret"]]
    assert steps(secret=reference, OF_CLIENT="the second") == []
    assert steps(moved, reference, OF_CLIENT="the second") == [["discovery_url"]]
    assert steps(moved, reference, OF_CLIENT="the second") == []
    assert steps(moved) == [["sign_in.has_client_secret"]]
    assert steps(moved) == []
    assert steps(moved, reference, OF_CLIENT="the first") == [["sign_in.has_client_secret"]]


def test_a_key_comes_from_a_file_and_parameters_go_that_the_file_has_not(gateways, tmp_path: Path) -> None:
    here, _ = gateways
    here.ask("POST", "/tenants", {"name": "keyed"})
    file, key = tmp_path / "gateway.yaml", tmp_path / "gateway.pem"

    def steps(**parameters: str) -> list[Sequence[str]]:
        client = {"client_id": "x", "client_secret": "${file:gateway.pem}", "parameters": parameters}
        issuer = {"algorithms": ["RS256"], "discovery_url": "https://a.example/d", "sign_in": client}
        file.write_text(json.dumps({"tenants": {"keyed": {"issuers": {"https://a.example": issuer}}}}))
        plan = make_plan(here, read_files([str(file)], {}), prune=True)
        carry_out(here, plan, begin=_quiet, say=_quiet)
        return [sorted(change.path for change in step.changes) for step in plan.steps]

    key.write_text(with_certificate(P256))
    assert len(steps(prompt="consent", access_type="offline")) == 1
    assert steps(prompt="consent", access_type="offline") == []
    assert steps(prompt="none") == [["sign_in.parameters.access_type", "sign_in.parameters.prompt"]]
    assert steps(prompt="none") == []
    key.write_text(pem(P256))
    assert steps() == [["sign_in.client_secret", "sign_in.parameters.prompt"]]
    assert steps() == []


def _stored(tenant: CurrentTenant) -> object:
    """What the gateway shows of it, without what nobody has given."""

    def given(members: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in members.items() if name not in UNSENT}

    sections = {
        section: {name: given(each) for name, each in found.items()} for section, found in tenant.sections.items()
    }
    return given(tenant.members), sections


def _quiet(_: str) -> None:
    """Says nothing."""


def _bodies(kind: Kind) -> list[dict[str, Any]]:
    """As few as have every value that the body takes, of every member."""
    found, taken = list[dict[str, Any]](), {kind.named_by, *APART}
    for number, base in enumerate(BASES[kind.section]):
        bodies, members = _packed(base, kind.body, kind.named_by, ("x",) if number else TEXTS)
        found, taken = [*found, *bodies], taken | members
    never = kind.body.model_fields.keys() - taken
    assert not never, f"no value of {never} is accepted: give EXAMPLES"
    return found


def _packed(
    base: dict[str, Any], model: type[BaseModel], named_by: str, texts: Sequence[str]
) -> tuple[list[dict[str, Any]], set[str]]:
    """Bodies with this base, and the members of which there is a value."""
    packs: list[tuple[dict[str, Any], set[str]]] = [(base, set())]
    for path, members in _variants(model.model_json_schema(), texts):
        if path in (named_by, *APART) or not _is_taken(model, _merged(base, members)):
            continue
        for number, (body, paths) in enumerate(packs):
            if path not in paths and _is_taken(model, merged := _merged(body, members)):
                packs[number] = merged, paths | {path}
                break
        else:
            packs.append((_merged(base, members), {path}))
    return [body for body, _ in packs], {path.partition(".")[0] for _, paths in packs for path in paths}


def _is_taken(model: type[BaseModel], body: dict[str, Any]) -> bool:
    try:
        model.model_validate({"issuer" if "issuer" in model.model_fields else "name": "x", **body})
    except ValidationError:
        return False
    return True


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(base)
    for name, value in more.items():
        is_inner = isinstance(value, dict) and isinstance(merged.get(name), dict) and name not in EXAMPLES
        merged[name] = _merged(merged[name], value) if is_inner else value
    return merged


def _variants(schema: dict[str, Any], texts: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Members of an object of this schema, one at a time with each value, and their paths."""
    for name, member in schema["properties"].items():
        for value in EXAMPLES.get(name, ()):
            yield name, {name: value}
        if name in NAMING:
            continue
        for path, value in _values(member, schema.get("$defs", {}), texts):
            yield f"{name}.{path}" if path else name, {name: value}


def _values(member: dict[str, Any], known: dict[str, Any], texts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if "$ref" in member:
        member = {**known[member["$ref"].rpartition("/")[2]]}
    for each in member.get("anyOf", ()):
        yield from _values(each, known, texts)
    if "properties" in member:
        yield from _variants({**member, "$defs": known}, texts)
    if "default" in member:
        yield "", member["default"]
    yield from (("", each) for each in member.get("enum", [member["const"]] if "const" in member else []))
    match member.get("type"):
        case "string" if "enum" not in member:
            yield from (("", text) for text in texts)
        case "boolean":
            yield from (("", False), ("", True))
        case "null":
            yield "", None
        case "integer" | "number":
            least, most = member.get("minimum", member.get("exclusiveMinimum", 0)), member.get("maximum", 1e9)
            yield from (("", each) for each in (least, least + 1, most))
        case "array":
            yield "", []
            for _, each in _values(member["items"], known, texts):
                yield "", [each]
        case "object" if "properties" not in member:
            yield "", {}
