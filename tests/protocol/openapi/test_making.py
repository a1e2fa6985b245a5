"""Documents become tools, and sentences about what does not."""

import json
import re
from copy import deepcopy
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.protocol.openapi import making
from app.protocol.openapi.api import MAX_API_BYTES, encoded, packed, unpacked
from app.protocol.openapi.document import UnfitDocument
from app.protocol.openapi.making import api_of
from tests.protocol.openapi.documents import PETS, SHOP


def tools_of(document):
    return {each.name: json.loads(bytes(each.tool)) for each in api_of(document).operations}


def alone(operation, path="/x", **more):
    """A document of one operation."""
    return {"openapi": "3.1.0", "paths": {path: {"post": operation}}, **more}


def schema_of(operation, **more):
    (tool,) = tools_of(alone(operation, **more)).values()
    Draft202012Validator.check_schema(tool["inputSchema"])
    return tool["inputSchema"]


def body_of(schema, **more):
    return schema_of({"requestBody": {"content": {"application/json": {"schema": schema}}}}, **more)["properties"][
        "body"
    ]


def test_each_operation_becomes_a_tool():
    tools = tools_of(SHOP)
    assert list(tools) == ["items_list", "items_create", "items_get", "items_replace", "items_get_2", "addPart"]
    assert tools["items_list"] == {
        "name": "items_list",
        "title": "List items",
        "description": "List items",
        "inputSchema": {
            "type": "object",
            "properties": {
                "page": {"type": ["integer", "null"]},
                "tag": {"type": "array", "items": {"type": "string"}},
                "filter": {"type": "object"},
                "X-Trace": {"type": "string"},
            },
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    }
    assert tools["items_replace"]["annotations"] == {"idempotentHint": True}
    assert tools["items_get_2"]["annotations"] == {"destructiveHint": True, "idempotentHint": True}
    assert tools["items_get_2"]["description"] == "Deprecated. DELETE /items/{id}"
    assert "annotations" not in tools["items_create"]


def test_a_body_of_members_is_spread_and_clashes_are_told_apart():
    schema = tools_of(SHOP)["items_replace"]["inputSchema"]
    assert schema["properties"] == {
        "id": {"type": "integer"},
        "body_id": {"type": "string"},
        "name": {"type": "string", "minLength": 1},
        "price": {"type": "number", "exclusiveMinimum": 0},
    }
    assert schema["required"] == ["id", "body_id", "name"]
    assert tools_of(SHOP)["items_create"]["inputSchema"]["required"] == ["id", "name"]


NAMED = {"properties": {"id": {"readOnly": True}, "name": {}, "price": {}}}
NEEDS = {**NAMED, "required": ["id", "name"]}


@pytest.mark.parametrize(
    ("body", "required"),
    [
        ({}, ["name"]),  # `required` is seldom written where a body must be sent
        ({"required": True}, ["name"]),
        ({"required": False}, []),
        ({"schema": {"allOf": [NAMED, {"required": ["name"]}]}}, ["name"]),
        ({"schema": NAMED}, []),
        ({"schema": True}, []),
        ({"schema": {**NEEDS, "additionalProperties": {}}}, ["body"]),
        ({"schema": {**NEEDS, "additionalProperties": {}}, "required": False}, []),
        ({"schema": {**NEEDS, "required": ["id"], "additionalProperties": {}}}, []),
    ],
)
def test_what_a_body_requires_is_required_unless_the_body_is_said_not_to_be(body, required):
    schema, said = body.get("schema", NEEDS), {name: body[name] for name in ("required",) if name in body}
    operation = {"requestBody": {"content": {"application/json": {"schema": schema}}, **said}}
    older = {"parameters": [{"name": "x", "in": "body", "schema": schema, **said}]}
    for document in (alone(operation), {"swagger": "2.0", "paths": {"/x": {"post": older}}}):
        (tool,) = tools_of(document).values()
        assert tool["inputSchema"].get("required", []) == required


def test_a_schema_that_contains_itself_is_defined_once():
    schema = tools_of(SHOP)["addPart"]["inputSchema"]
    assert schema["properties"]["body"]["items"] == {"$ref": "#/$defs/Part"}
    assert schema["$defs"]["Part"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Part"}
    deep = {"body": [{"name": "a", "parts": [{"name": "b", "parts": [{"name": 1}]}]}]}
    assert [each.validator for each in Draft202012Validator(schema).iter_errors(deep)] == ["type"]


def test_what_cannot_be_expressed_is_left_out_in_a_sentence():
    assert api_of(SHOP).notes == [
        "POST /items: its callbacks are left out: nobody would be called back",
        "HEAD /items/{id}: is left out: its answer has no content that a tool could return",
        "POST /items/{id}/photo: is left out: it takes a body of multipart/form-data, and only JSON can be given",
        "GET /basket: is left out: it needs the parameter `sid`, which cannot be given (it is in `cookie`)",
        "GET /gone: is left out: it refers to `#/components/parameters/Missing`, which the document does not have",
        "GET /far: is left out: it refers to another document (`other.yaml#/x`)",
        "GET /x/../y: is left out: it has `.` or `..` in its path",
    ]


NOT_GIVEN = "cannot be given: the gateway sets this header, or `headers` do"


@pytest.mark.parametrize(
    ("method", "operation", "notes"),
    [
        ("get", {"requestBody": {"content": {"application/json": {}}}}, ["its body is left out: a GET has none"]),
        ("get", {"parameters": [{"name": "Cookie", "in": "header"}]}, [f"its parameter `Cookie` {NOT_GIVEN}"]),
        (
            "put",
            {"parameters": [{"name": "host", "in": "header", "required": True}]},
            [f"its parameter `host` {NOT_GIVEN}"],
        ),
        ("put", {"parameters": [{"name": "Mcp-Name", "in": "header"}]}, [f"its parameter `Mcp-Name` {NOT_GIVEN}"]),
        ("put", {"parameters": [{"name": each, "in": "header"} for each in ("Accept", "content-type")]}, []),
        (
            "get",
            {"parameters": [{"name": "q", "in": "query", "allowReserved": True}]},
            ["its parameter `q` is percent-encoded, though `allowReserved` says otherwise"],
        ),
    ],
)
def test_what_is_left_out_of_a_tool_is_listed_too(method, operation, notes):
    api = api_of({"openapi": "3.1.0", "paths": {"/x": {method: operation}}})
    assert api.notes == [f"{method.upper()} /x: {each}" for each in notes]
    assert len(api.operations) == 1


def test_what_is_known_of_the_api():
    api = api_of(SHOP)
    assert (api.title, api.version, api.description) == ("Shop", "7", "Sells things.")
    assert (api.server, api.keys) == ("https://eu.shop.example/v1", ["key"])
    assert unpacked(packed(encoded(api))) == api


SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "asked": {"type": "apiKey", "in": "query", "name": "token"},
    "login": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "certificate": {"type": "mutualTLS"},
}


@pytest.mark.parametrize(
    ("security", "sent", "words"),
    [
        ([{"key": []}], [], "`X-Api-Key`"),
        ([{"key": []}], ["x-api-key"], None),
        ([{"asked": []}], ["X-Other"], "`token`"),
        ([{"login": []}, {"key": [], "asked": []}], ["token"], "`Authorization` or `X-Api-Key` and `token`"),
        ([{"login": []}, {"key": [], "asked": []}], ["token", "X-API-Key"], None),
        ([{"login": []}, {}], [], None),
        ([{"session": []}], [], "`Cookie`"),
        ([{"certificate": []}], [], None),
        ([{"none such": []}], [], None),
        ([], [], None),
        ("key", [], None),
    ],
)
def test_a_credential_that_most_operations_need_is_asked_for(security, sent, words):
    paths = {f"/{each}": {"get": {"security": security}} for each in range(3)} | {"/x": {"get": {}}, "/y": {"get": {}}}
    note = [f"the document asks for {words}: give it in `headers`"] if words else []
    document = {"openapi": "3.1.0", "paths": paths, "components": {"securitySchemes": SCHEMES}}
    assert api_of(document).lacking(sent) == note
    del paths["/2"]  # half of them are not most
    assert api_of(document).lacking(sent) == []
    assert api_of({**document, "security": security}).lacking(sent) == note


def test_swagger_2_says_it_in_another_place():
    document = {**PETS, "security": [{"basic": []}], "securityDefinitions": {"basic": {"type": "basic"}}}
    assert api_of(document).lacking([]) == ["the document asks for `Authorization`: give it in `headers`"]


@pytest.mark.parametrize(
    ("said", "server"),
    [
        ({"servers": [{"url": "/v1"}, {"url": "https://shop.example/v1/"}]}, "https://shop.example/v1"),
        ({"servers": [{"url": "/v1"}]}, "/v1"),
        ({}, "/"),
        ({"servers": [{"url": "{scheme}://shop.example"}]}, ""),
        ({"servers": [{"url": "//[shop.example"}, 3]}, ""),
    ],
)
def test_where_the_api_is(said, server):
    assert api_of(alone({}, **said)).server == server


def test_swagger_2_is_read_too():
    api = api_of(PETS)
    assert api.server == "https://pets.example/api"
    (operation,) = api.operations
    styles = {each.name: (each.style, each.explode) for each in operation.parameters}
    assert styles == {
        "id": ("simple", False),
        "tags": ("form", False),
        "colours": ("form", True),
        "sizes": ("tabDelimited", False),
    }
    assert tools_of(PETS)["putPet"]["inputSchema"]["properties"]["name"] == {"type": "string"}
    assert api.notes == [
        "PUT /pets/{id}: its parameter `forms` is written in a way that is not known",
        "POST /pets/{id}/photo: is left out: it takes a body of multipart/form-data, and only JSON can be given",
    ]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "neither a member `openapi` nor a member `swagger`"),
        ({"openapi": "4.0.0", "paths": {"/a": {}}}, "is of version 4.0.0"),
        ({"swagger": "1.2"}, "is of version 1.2"),
        ({"openapi": "3.1.0"}, "has no `paths`"),
        ({"openapi": "3.1.0", "paths": {}}, "has no `paths`"),
        ({"openapi": "3.1.0", "paths": ["/a"]}, "has no `paths`"),
        ({"openapi": "3.1.0", "paths": {"/a": "get"}}, "/a: is left out: it has something that is no object"),
        (
            {"openapi": "3.1.0", "paths": {"/a": {"get": {"parameters": [3]}}}},
            "no operation of the document can be called",
        ),
        ({"openapi": "3.1.0", "paths": {"/a": {"$ref": "#/paths/~1a"}}}, "a reference that refers to itself"),
        ({"openapi": "3.1.0", "paths": {"/{a}": {"get": {}}}}, "`{a}` in its path, which is none of its parameters"),
        ({"openapi": "3.1.0", "paths": {"/%2e%2E/a": {"get": {}}}}, "`.` or `..` in its path"),
        ({"openapi": "3.1.0", "paths": {"a b": {"get": {}}}}, "a path that is none"),
    ],
)
def test_a_document_that_cannot_be_used_says_why(document, words):
    with pytest.raises(UnfitDocument, match=re.escape(words)):
        api_of(document)


def test_names_are_fit_for_clients_and_unique():
    paths = {f"/{each}": {"get": {"operationId": f"Größe der {'sehr ' * 30}langen Dinge {each}"}} for each in range(3)}
    paths["/a"] = {"get": {"operationId": "x y"}, "put": {"operationId": "x_y"}, "post": {}}
    names = list(tools_of({"openapi": "3.1.0", "paths": paths}))
    assert len(set(names)) == 6
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", each) for each in names)
    assert names[3:] == ["x_y", "x_y_2", "post_a"]


def test_a_parameter_of_another_path_is_none_of_the_tools():
    shared = {"name": "id", "in": "path", "required": True, "schema": {}}
    assert schema_of({"parameters": [shared]})["properties"] == {}


def test_names_of_arguments_are_fit_too_and_told_apart():
    named = [("filter[name]", "query"), ("filter(name)", "query"), ("$top", "query"), ("top", "header")]
    schema = schema_of({"parameters": [{"name": name, "in": place, "schema": {}} for name, place in named]})
    assert list(schema["properties"]) == ["filter_name", "query_filter_name", "top", "header_top"]


A = {"$ref": "#/components/schemas/A"}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"maximum": 9, "exclusiveMaximum": True}, {"exclusiveMaximum": 9}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        ({"exclusiveMaximum": 9}, {"exclusiveMaximum": 9}),
        ({"type": "int", "x-more": 1, "xml": {}, "discriminator": {}}, {}),
        ({"type": ["string", "null"], "const": "a"}, {"type": ["string", "null"], "const": "a"}),
        ({"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a+$"}),
        ({"type": "string", "pattern": "(?i)a"}, {"type": "string"}),
        ({"type": "string", "pattern": "a("}, {"type": "string"}),
        ({"oneOf": [{"type": "string"}, True, False]}, {"oneOf": [{"type": "string"}, {}, {"not": {}}]}),
        ({"allOf": [A], "nullable": True}, {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]}),
        ({**A, "description": "own"}, {"type": "string", "description": "own"}),
        ({"required": True, "additionalProperties": {**A}}, {"additionalProperties": {"type": "string"}}),
    ],
)  # fmt: skip
def test_schemas_are_those_that_clients_accept(given, made):
    assert body_of(given, components={"schemas": {"A": {"type": "string"}}}) == made


def test_a_large_schema_is_shared_and_a_larger_one_only_outlined():
    leaves = {f"f{each}": {"type": "string", "description": "words " * 20} for each in range(40)}
    schemas = {"Leaf": {"type": "object", "properties": leaves}}
    wide = {"type": "object", "properties": {f"p{each}": {"$ref": "#/components/schemas/Leaf"} for each in range(60)}}
    made = schema_of(
        {"requestBody": {"content": {"application/json": {"schema": wide}}}}, components={"schemas": schemas}
    )
    assert made["properties"]["p7"] == {"$ref": "#/$defs/Leaf"}
    assert len(made["$defs"]["Leaf"]["properties"]) == 40
    huge = {
        "type": "array",
        "items": {"type": "object", "properties": {f"o{each}": wide | {"title": str(each)} for each in range(60)}},
    }
    document = alone(
        {"requestBody": {"content": {"application/json": {"schema": huge}}}}, components={"schemas": schemas}
    )
    (tool,) = tools_of(document).values()
    assert len(json.dumps(tool)) < 48 << 10
    assert api_of(document).notes == ["POST /x: its schema is too large: only the names of its arguments are shown"]


def test_a_document_with_a_bomb_of_references_is_read_in_no_time():
    schemas = {
        f"S{each}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/components/schemas/S{each + 1}"} for name in "abcdefgh"},
        }
        for each in range(40)
    }
    schemas["S40"] = {"type": "string"}
    operation = {
        "requestBody": {
            "content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/S0"}}}}
        }
    }
    (tool,) = tools_of(alone(operation, components={"schemas": schemas})).values()
    assert len(json.dumps(tool)) < 48 << 10


def test_nor_does_one_of_parts_take_long():
    """Of each of which there are fifty, of each of which..."""
    parts = {f"S{each}": {"allOf": [{"$ref": f"#/components/schemas/S{each + 1}"}] * 50} for each in range(8)}
    body = {"$ref": "#/components/schemas/S0"}
    made = body_of(body, components={"schemas": {**parts, "S8": {"type": "string"}}})
    assert made == {"$ref": "#/$defs/S0"}


def test_no_more_tools_are_made_than_a_backend_may_offer(monkeypatch):
    monkeypatch.setattr(making, "MAX_TOOLS", 3)
    monkeypatch.setattr(making, "MAX_NOTES", 4)
    api = api_of({"openapi": "3.1.0", "paths": {f"/{each}": {"get": {}} for each in range(10)}})
    assert len(api.operations) == 3
    assert len(api.left_out) == 4
    assert api.notes[-1] == "… and 3 more"
    assert "at most 3 tools" in api.notes[0]
    assert MAX_API_BYTES < 8 << 20  # of a whole offer


def test_an_operation_at_another_server_is_left_out():
    document = deepcopy(SHOP)
    document["paths"]["/items"]["get"]["servers"] = [{"url": "https://uploads.example"}]
    assert "GET /items: is left out: it is at another server (https://uploads.example)" in api_of(document).notes


ODD: tuple[Any, ...] = (3, None, [], "x", {}, [[]], True, {"$ref": 3}, {"$ref": "#/"}, 1 << 70, {"$ref": "#/paths"})


def places(node, above=()):
    yield above
    for key, each in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(each, (*above, key))


def changed(node, place, value):
    if not place:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[place[0]] = changed(node[place[0]], place[1:], value)
    return copy


@pytest.mark.parametrize("document", [SHOP, PETS], ids=["3", "2"])
def test_whatever_stands_somewhere_costs_at_most_the_operation_that_needs_it(document):
    paths = list(document["paths"])
    for number, place in enumerate(list(places(document))[1:]):
        for odd in ODD[number % 5 :: 5]:
            try:
                made = api_of(changed(document, place, odd))
            except UnfitDocument:
                continue
            encoded(made)
            if place[0] == "paths" and len(place) > 2:
                others = {each for each in paths if each != place[1]}
                kept = {each.path for each in api_of(document).operations} & others
                assert kept <= {each.path for each in made.operations}
