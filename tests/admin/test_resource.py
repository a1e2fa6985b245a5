"""A resource of the simplest kind: its routes, its rows, the audit trail, the command line and a file."""

import argparse
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from sqlalchemy import create_engine

from app.cli import resources as commands
from app.cli.files.carrying_out import carry_out
from app.cli.files.current import read_tenant
from app.cli.files.exporting import export
from app.cli.files.gateway_file import read_files
from app.cli.files.plan import make_plan
from app.cli.files.schema import schema
from app.cli.rest import Refused, Rest
from app.domain import NAME_PATTERN
from app.domain.resources.fields import NAME_SPELLING
from app.storage._tables import metadata
from app.storage.audit import Change
from tests.admin import notes
from tests.admin.rig import Rig, filled_file, open_rig
from tests.cli.files.test_exporting import Direct

USUAL: dict[str, Any] = {"members": [], "unset": [], "file": None, "command_line": [], "limit": 10}
PATH = "/api/v1/tenants/acme/notes"


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "test.db").write_bytes(filled_file())
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with notes.application(monkeypatch) as app:
        metadata.tables["notes"].create(create_engine(url))
        yield app


@asynccontextmanager
async def with_notes(url: str, app: Any) -> AsyncIterator[Rig]:
    async with open_rig(url) as rig:
        app.state, rig.app = rig.app.state, app
        yield rig


@pytest.fixture
async def rig(url: str, app: Any) -> AsyncIterator[Rig]:
    async with with_notes(url, app) as rig:
        yield rig


def test_adding_one_is_short():
    assert len(Path(notes.__file__).read_text().splitlines()) <= 60


async def test_its_routes_are_those_of_every_resource(rig):
    body, once = {"name": "one", "text": "x", "labels": {"a": "b"}}, {"Idempotency-Key": "k"}
    made = await rig.ask("POST", PATH, body, headers=once)
    assert (made.status_code, made.headers["Location"]) == (201, PATH + "/one")
    again = await rig.ask("POST", PATH, body, headers=once)
    assert (again.headers["Idempotency-Replayed"], again.json()) == ("true", made.json())
    assert (await rig.ask("POST", PATH, body)).status_code == 409
    shown = await rig.ask("GET", PATH + "/one")
    assert shown.json() == made.json()
    assert (shown.json()["stars"], shown.json()["labels"], shown.json()["version"]) == (0, {"a": "b"}, 1)
    assert "text" not in (await rig.ask("GET", PATH)).json()["items"][0]
    stale = await rig.ask("PATCH", PATH + "/one", {"stars": 1}, headers={"If-Match": '"old"'})
    assert stale.status_code == 412
    tag = {"If-Match": shown.headers["ETag"]}
    changed = await rig.ask("PATCH", PATH + "/one", {"stars": 5, "labels": {"a": None, "c": "d"}}, headers=tag)
    assert (changed.json()["stars"], changed.json()["labels"], changed.json()["version"]) == (5, {"c": "d"}, 2)
    assert (await rig.ask("DELETE", PATH + "/one", headers=tag)).status_code == 412
    assert (await rig.ask("DELETE", PATH + "/one")).status_code == 204
    assert (await rig.ask("GET", PATH + "/one")).status_code == 404
    acts = await rig.trail("acme")
    assert [(each.action, each.target) for each in acts] == [
        (f"note.{verb}", "notes/one") for verb in ("create", "change", "delete")
    ]
    assert Change("stars", 0, 5) in acts[1].changes


@pytest.mark.parametrize(
    "body", [{"text": "x", "stars": 6}, {"text": "a\0"}, {"text": "x", "title": "a\nb"}, {"text": "x", "more": 1}, {}]
)
async def test_what_its_members_may_not_be_is_refused(rig, body):
    assert (await rig.ask("POST", PATH, {"name": "one", **body})).status_code == 422


async def test_a_member_that_it_has_not_is_named_with_one_that_may_be_meant(rig):
    for body, words in (
        ({"titel": "x"}, "there is no such member; did you mean `title`?"),
        ({"zzz": 1}, "there is no such member"),
    ):
        answer = await rig.ask("POST", PATH, {"name": "one", "text": "x", **body})
        assert answer.json()["errors"] == [{"detail": words, "pointer": f"#/{next(iter(body))}"}]
    answer = await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": "mcp:connect"})
    assert answer.json()["errors"] == [{"detail": "must be a list", "pointer": "#/scopes"}]
    answer = await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": ["mcp:conect"]})
    assert answer.json()["errors"][0]["detail"] == "there is no such scope; did you mean `mcp:connect`?"


async def test_how_its_name_is_spelled_is_said_in_words(rig):
    answer = await rig.ask("POST", PATH, {"name": "One", "text": "x"})
    assert answer.status_code == 422
    assert f"must be {NAME_SPELLING}" in answer.text
    assert NAME_PATTERN not in answer.text


async def test_it_has_the_permissions_of_every_resource_and_its_own_limit(rig):
    reader, other = await rig.key("acme", "tenant:read"), await rig.key("zenith", "tenant:admin")
    codes = [(await rig.ask("POST", PATH, {"name": f"n{each}", "text": "x"})).status_code for each in range(3)]
    assert codes == [201, 201, 429]
    assert (await rig.ask("GET", PATH + "/n0", key=reader)).status_code == 200
    assert (await rig.ask("PATCH", PATH + "/n0", {"stars": 1}, key=reader)).status_code == 403
    assert (await rig.ask("GET", PATH + "/n0", key=other)).status_code == 404


def test_the_command_line_and_files_know_it(url, app, tmp_path, monkeypatch, capsys):
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(with_notes(url, app)) as rig,
        httpx2.Client(transport=Direct(rig, portal)) as client,
    ):
        rest = Rest("http://here", client, is_patient=True)
        monkeypatch.setattr(commands, "open_rest", lambda _: nullcontext(rest))

        def run(command: Callable[[argparse.Namespace], int], **options: Any) -> Any:
            asked = {"resource": notes.COMMANDS, "tenant": "acme", "id": "one", "json": True, "done": "", **USUAL}
            assert command(argparse.Namespace(**{**asked, **options})) == 0
            return json.loads(capsys.readouterr().out or "{}")

        assert run(commands.create_object, members=["stars=2", "text=x"])["stars"] == 2
        assert run(commands.change_object, members=["title=One"], unset=["stars"])["stars"] == 0
        assert run(commands.list_objects)[0]["title"] == "One"
        (tmp_path / "note.json").write_text('{"name": "one", "stars": 0, "title": "One"}')
        assert run(commands.change_object, file=str(tmp_path / "note.json"))["version"] == 2
        with pytest.raises(Refused, match="name: there is no such member"):
            run(commands.change_object, members=["name=other"])
        exported = export([read_tenant(rest, "acme", ("notes",))]).text()
        run(commands.delete_object)
        (tmp_path / "gateway.yaml").write_text(exported)
        steps = make_plan(rest, read_files([str(tmp_path / "gateway.yaml")], {}), prune=False)
        assert [step.what for step in steps.steps] == ["note acme/one"]
        carry_out(rest, steps, begin=lambda _: None, say=lambda _: None)
        assert run(commands.show_object)["title"] == "One"
    assert schema()["$defs"]["Tenant"]["properties"]["notes"]["description"] == notes.NOTES.about
