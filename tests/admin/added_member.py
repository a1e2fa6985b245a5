"""Everything that knows a new member of a backend, once it is declared: `test_resource_member.py` runs it."""

import io
import json
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import httpx2
from anyio.from_thread import start_blocking_portal

import app
from app.cli import resources as commands
from app.cli.files.carrying_out import carry_out
from app.cli.files.current import read_tenant
from app.cli.files.exporting import export
from app.cli.files.gateway_file import read_files
from app.cli.files.plan import make_plan
from app.cli.files.schema import schema
from app.cli.parser import parse
from app.cli.rest import Rest
from app.console.backend_form import Field, groups
from app.node.application import build_api
from app.storage.audit import Change
from tests.admin.rig import Rig, filled_file, open_rig
from tests.cli.files.test_exporting import Direct

PATH = "/api/v1/tenants/acme/backends"


async def over_rest(rig: Rig) -> None:
    """Made, changed, shown, refused; and in the audit trail."""
    made = await rig.ask("POST", PATH, {"name": "one", "command": "cat", "colour": "blue"})
    assert (made.status_code, made.json()["colour"]) == (201, "blue"), made.text
    assert (await rig.ask("GET", f"{PATH}/echo")).json()["colour"] == "red"  # of a backend of before
    changed = await rig.ask("PATCH", f"{PATH}/one", {"colour": None})
    assert (changed.json()["colour"], changed.json()["version"]) == ("red", 2)
    assert (await rig.ask("PATCH", f"{PATH}/one", {"colour": "grey"})).status_code == 422
    assert (await rig.ask("GET", f"{PATH}/one")).json()["colour"] == "red"
    created, change = await rig.trail("acme")
    assert Change("colour", None, "blue") in created.changes
    assert change.changes == (Change("colour", "blue", "red"),)


def from_the_command_line(rest: Rest, folder: Path) -> None:
    """`create`, `export` and `apply`."""
    options = parse(["backends", "create", "two", "--tenant", "acme", "--json", "colour=blue", "--", "cat"])
    there = patch.object(commands, "open_rest", lambda _: nullcontext(rest))
    with there, redirect_stdout(io.StringIO()) as printed:
        assert commands.create_object(options) == 0
    assert json.loads(printed.getvalue())["colour"] == "blue"
    file = folder / "gateway.yaml"
    file.write_text(export([read_tenant(rest, "acme", ("backends",))]).text())
    assert "colour: blue" in file.read_text()
    assert make_plan(rest, read_files([str(file)], {"ACME_ECHO_TOKEN": "s3cret"}), prune=False).steps == ()
    file.write_text(file.read_text().replace("colour: blue", "colour: red"))
    plan = make_plan(rest, read_files([str(file)], {"ACME_ECHO_TOKEN": "s3cret"}), prune=False)
    assert [each.line() for step in plan.steps for each in step.changes] == ['colour: "blue" → "red"']
    carry_out(rest, plan, begin=lambda _: None, say=lambda _: None)


def everything_knows_it(folder: Path) -> None:
    """Raises AssertionError."""
    assert Path(app.__file__).is_relative_to(folder), "this is no copy"
    (folder / "test.db").write_bytes(filled_file())
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_rig(f"sqlite:///{folder}/test.db")) as rig,
        httpx2.Client(transport=Direct(rig, portal)) as client,
    ):
        portal.call(over_rest, rig)
        from_the_command_line(Rest("http://here", client, is_patient=True), folder)
    assert schema()["$defs"]["BackendBody"]["properties"]["colour"]["enum"] == ["red", "blue"]
    assert build_api().openapi()["components"]["schemas"]["BackendBody"]["properties"]["colour"]["default"] == "red"
    assert groups()["processes"][-1] == Field("colour", "colour", kind="choice", choices=("red", "blue"))


if __name__ == "__main__":
    everything_knows_it(Path.cwd())
