"""…/recipes: what is written, checked, shown and refused."""

import json
from typing import Any

import pytest

from app.backends.catalog import knowledge
from app.protocol.search.work import Work
from tests.protocol.toolset.offers import offer, tool

PATH = "/api/v1/tenants/acme/recipes"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture
async def kitchen(rig, monkeypatch):
    """The toolset `all` shows the tool `echo_say`. What is written is read again each time."""
    monkeypatch.setattr(knowledge, "MAX_AGE_S", 0.0)
    rig.offers.known["acme", "echo"] = offer("echo", tools=[tool("say", inputSchema=SCHEMA)])
    return rig


def body(*steps: Any, **members: Any) -> dict[str, Any]:
    return {"name": "cook", "toolset": "all", "steps": list(steps or (SAID,)), **members}


@pytest.fixture
def pieces(kitchen, monkeypatch):
    """How many pieces there were of each work."""
    counted = list[int]()

    async def in_pieces(tenant: str, work: Work[Any]) -> Any:
        counted.append(0)
        while True:
            try:
                next(work)
            except StopIteration as done:
                return done.value
            counted[-1] += 1

    monkeypatch.setattr(kitchen.admin.shares, "in_pieces", in_pieces)
    return counted


SAID: dict[str, Any] = {"id": "a", "tool": "echo_say", "arguments": {"text": "'x'"}}


async def test_a_recipe_is_written_shown_changed_and_removed(kitchen):
    form = {"type": "object", "properties": {"why": {"type": "string"}}}
    question = {"message": "'Sure?'", "requested_schema": form}
    asked = {**SAID, "id": "b", "question": question, "condition": "steps.a.text"}
    made = await kitchen.ask(
        "POST", PATH, body(SAID, [asked, {**SAID, "id": "c"}], title="Cook", output="steps.b.text")
    )
    assert made.status_code == 201, made.text
    assert made.headers["Location"] == PATH + "/cook"
    shown = await kitchen.ask("GET", PATH + "/cook")
    assert shown.json() == made.json()
    assert shown.json()["steps"] == [SAID, [asked, {**SAID, "id": "c"}]]
    assert shown.json()["problems"] == []
    assert [each["name"] for each in (await kitchen.ask("GET", PATH)).json()["items"]] == ["cook", "twice"]
    toolset = (await kitchen.ask("GET", "/api/v1/tenants/acme/toolsets/all")).json()
    assert toolset["recipes"] == ["cook", "twice"]
    assert toolset["shown_tools"] == ["cook", "twice", "echo_say"]
    changed = await kitchen.ask("PATCH", PATH + "/cook", {"steps": [SAID], "output": None, "deadline_s": 3.0})
    assert (changed.json()["steps"], changed.json()["output"], changed.json()["version"]) == ([SAID], None, 2)
    stale = await kitchen.ask("PATCH", PATH + "/cook", {"title": "x"}, headers={"If-Match": made.headers["ETag"]})
    assert stale.status_code == 412
    assert (await kitchen.ask("DELETE", PATH + "/cook")).status_code == 204
    assert (await kitchen.ask("GET", PATH + "/cook")).status_code == 404
    assert kitchen.heard == [("writings", "acme")] * 3


@pytest.mark.parametrize(
    ("wrong", "pointer", "words"),
    [
        (body({**SAID, "tool": "echo_gone"}), "#/steps/0/tool", "step a: the toolset shows no tool echo_gone"),
        (body({**SAID, "tool": "twice"}), "#/steps/0/tool", "step a: twice is a recipe"),
        (
            body(SAID, {"id": "b", "tool": "echo_say"}),
            "#/steps/1/arguments",
            "step b: its tool needs the argument text",
        ),
        (body(output="steps.b.text"), "#/output", "output: there is no step b"),
        (body(deadline_s=60.0), "#/deadline_s", "the toolset gives up a call after its `timeouts.call_s`, 60 s"),
        (body(toolset="other"), "#/toolset", "there is no toolset other"),
    ],
)
async def test_what_cannot_work_is_refused_and_the_step_named(kitchen, wrong, pointer, words):
    refused = await kitchen.ask("POST", PATH, wrong)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == pointer
    assert error["detail"].startswith(words)
    assert kitchen.heard == []


@pytest.mark.parametrize(
    "wrong",
    [
        body({"id": "a b", "tool": "x"}),
        body({"id": "a", "tool": ""}),
        body([]),
        {"name": "cook", "toolset": "all", "steps": []},
        body(*[{**SAID, "id": f"s{number}"} for number in range(33)]),
        body([{**SAID, "id": f"s{number}"} for number in range(9)]),
        body({**SAID, "condition": "x" * 1001}),
        body({**SAID, "more": 1}),
        body(input_schema={"type": "string"}),
        body(deadline_s=0.5),
        body({**SAID, "arguments": {"text": "x" * 70_000}}),
        body({**SAID, "question": {"message": "'?'", "if_declined": "shout"}}),
    ],
    ids=range(12),
)
async def test_what_cannot_be_a_recipe_is_refused(kitchen, wrong):
    assert (await kitchen.ask("POST", PATH, wrong)).status_code == 422


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
@pytest.mark.parametrize(
    "where",
    [
        {"output": {"x": ["?"]}},
        {"input_schema": {"type": "object", "maximum": "?"}},
        {"steps": [{**SAID, "arguments": {"text": "'x'", "more": ["?"]}}]},
    ],
    ids=range(3),
)
async def test_numbers_that_are_not_finite_are_refused(kitchen, number, where):
    content = json.dumps({**body(), **where}).replace('"?"', number).encode()
    answer = await kitchen.ask("POST", PATH, content=content)
    assert (answer.status_code, answer.json()["errors"][0]["detail"]) == (422, "a recipe has finite numbers only")


async def test_what_others_cannot_read_is_refused(kitchen):
    deep: Any = "`1`"
    for _ in range(40):
        deep = [deep]
    for wrong in (
        {"output": deep},
        {"input_schema": {"type": "object", "maximum": 2**64}},
        {"steps": [{**SAID, "arguments": {"text": "'x'", "more": {"a": deep}}}]},
    ):
        answer = await kitchen.ask("POST", PATH, {**body(), **wrong})
        assert answer.status_code == 422, wrong
        assert any(words in answer.json()["errors"][0]["detail"] for words in ("32 levels", "64 bits"))
    most = {"type": "object", "maximum": 2**64 - 1, "minimum": -(2**63)}
    assert (await kitchen.ask("POST", PATH, {**body(), "input_schema": most})).is_success


async def test_a_toolset_does_not_give_up_before_its_recipes(kitchen):
    toolset = "/api/v1/tenants/acme/toolsets/all"
    assert (await kitchen.ask("DELETE", PATH + "/twice")).is_success
    assert (await kitchen.ask("POST", PATH, body(deadline_s=30.0))).is_success
    answer = await kitchen.ask("PATCH", toolset, {"timeouts": {"call_s": 30.0}})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/timeouts/call_s")
    assert "`deadline_s` of 30 s: lower that first" in answer.json()["detail"]
    assert (await kitchen.ask("PATCH", toolset, {"timeouts": {"call_s": 31.0}})).is_success


async def test_a_recipe_cannot_have_the_name_of_a_tool_that_is_shown(kitchen):
    kitchen.offers.known["acme", "echo"] = offer("echo", tools=[tool("say", inputSchema=SCHEMA)])
    members = [{"backend": "echo", "prefix": "", "rename": {"say": "cook"}}]
    await kitchen.ask("POST", "/api/v1/tenants/acme/toolsets", {"name": "work", "members": members})
    refused = await kitchen.ask("POST", PATH, body({**SAID, "tool": "cook"}, toolset="work"))
    assert refused.status_code == 409
    assert "shows a tool of the name cook" in refused.json()["detail"]


async def test_what_breaks_later_is_shown(kitchen):
    await kitchen.ask("POST", PATH, body())
    kitchen.offers.known["acme", "echo"] = offer("echo", tools=[tool("other")])
    shown = (await kitchen.ask("GET", PATH + "/cook")).json()
    assert shown["problems"] == ["step a: the toolset shows no tool echo_say"]
    toolset = (await kitchen.ask("GET", "/api/v1/tenants/acme/toolsets/all")).json()
    assert "recipe cook: step a: the toolset shows no tool echo_say" in toolset["problems"]


async def test_administrators_of_a_tenant_write_recipes_and_readers_read_them(kitchen):
    admin, reader = await kitchen.key("acme", "tenant:admin"), await kitchen.key("acme", "tenant:read")
    assert (await kitchen.ask("POST", PATH, body(), key=reader)).status_code == 403
    assert (await kitchen.ask("POST", PATH, body(), key=admin)).status_code == 201
    assert (await kitchen.ask("GET", PATH + "/cook", key=reader)).status_code == 200
    assert (await kitchen.ask("POST", PATH, body(), key=admin)).status_code == 409


async def test_a_patch_leaves_the_nulls_of_a_schema_that_it_does_not_name(kitchen):
    """RFC 7396: only what the patch names is removed."""
    form = {"type": "object", "properties": {"text": {"type": ["string", "null"], "default": None, "title": "Text"}}}
    made = await kitchen.ask("POST", PATH, body(input_schema=form, output={"nothing": None, "said": "steps.a.text"}))
    assert made.status_code == 201, made.text
    patch = {
        "input_schema": {"properties": {"text": {"title": None, "description": "What"}}},
        "output": {"said": "'x'"},
    }
    answer = await kitchen.ask("PATCH", PATH + "/cook", patch)
    assert answer.is_success, answer.text
    changed = answer.json()
    assert changed["input_schema"]["properties"]["text"] == {
        "type": ["string", "null"], "default": None, "description": "What",
    }  # fmt: skip
    assert changed["output"] == {"nothing": None, "said": "'x'"}


async def test_a_recipe_is_checked_in_pieces_of_one_expression_or_schema(kitchen, pieces):
    steps = [{**SAID, "id": f"s{number}", "condition": f"input.a{number}"} for number in range(20)]
    anything = {"type": "object", "additionalProperties": True}
    assert (await kitchen.ask("POST", PATH, body(*steps, input_schema=anything))).status_code == 201
    assert (await kitchen.ask("GET", PATH + "/cook")).json()["problems"] == []
    assert pieces == [3 * 20] * 2
    await kitchen.ask("GET", "/api/v1/tenants/acme/toolsets/all")
    assert pieces[2] > 3 * 20
    kitchen.offers.known["acme", "echo"] = offer("echo", tools=[tool("shout")])
    await kitchen.ask("GET", "/api/v1/tenants/acme/toolsets/all")
    assert pieces[3] == 2  # of each only the first problem is told
