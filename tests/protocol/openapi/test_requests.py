"""Arguments become requests."""

import json

import pytest

from app.protocol.openapi.making import api_of
from app.protocol.openapi.requests import UnfitArguments, base_of, request_of
from tests.protocol.openapi.documents import SHOP


def made(operation, arguments, path="/x", method="get", target="/", headers=None, **document):
    api = api_of({"openapi": "3.1.0", "paths": {path: {method: operation}}, **document})
    return request_of(api.operations[0], arguments, base_of(api, target, headers or {})[0])


def written(place, style, explode, value, name="c"):
    parameter = {"name": name, "in": place, "required": True, "style": style, "explode": explode, "schema": {}}
    path = f"/x/{{{name}}}" if place == "path" else "/x"
    return made({"parameters": [parameter]}, {name: value}, path)


LIST, OBJECT = ["blue", "black"], {"R": 100, "G": 200}


@pytest.mark.parametrize(
    ("place", "style", "explode", "value", "target"),
    [
        ("path", "simple", False, "a b/c?d#e%f", "/x/a%20b%2Fc%3Fd%23e%25f"),
        ("path", "simple", False, 7, "/x/7"),
        ("path", "simple", False, True, "/x/true"),
        ("path", "simple", False, LIST, "/x/blue,black"),
        ("path", "simple", False, OBJECT, "/x/R,100,G,200"),
        ("path", "simple", True, OBJECT, "/x/R=100,G=200"),
        ("path", "label", False, LIST, "/x/.blue,black"),
        ("path", "label", True, LIST, "/x/.blue.black"),
        ("path", "matrix", False, LIST, "/x/;c=blue,black"),
        ("path", "matrix", True, LIST, "/x/;c=blue;c=black"),
        ("path", "matrix", True, OBJECT, "/x/;R=100;G=200"),
        ("query", "form", True, "a&b=c", "/x?c=a%26b%3Dc"),
        ("query", "form", True, LIST, "/x?c=blue&c=black"),
        ("query", "form", False, LIST, "/x?c=blue,black"),
        ("query", "form", True, OBJECT, "/x?R=100&G=200"),
        ("query", "form", False, OBJECT, "/x?c=R,100,G,200"),
        ("query", "spaceDelimited", False, LIST, "/x?c=blue%20black"),
        ("query", "pipeDelimited", False, LIST, "/x?c=blue%7Cblack"),
        ("query", "tabDelimited", False, LIST, "/x?c=blue%09black"),
        ("query", "deepObject", True, OBJECT, "/x?c[R]=100&c[G]=200"),
        ("query", "deepObject", True, {"a": {"b": [1, 2]}}, "/x?c[a][b]=1&c[a][b]=2"),
        ("query", "form", True, "", "/x?c="),
    ],
)
def test_each_style(place, style, explode, value, target):
    assert written(place, style, explode, value).target == target


def test_a_parameter_of_json():
    operation = {"parameters": [{"name": "q", "in": "query", "content": {"application/json": {"schema": {}}}}]}
    assert made(operation, {"q": {"a": [1, "é"]}}).target == "/x?q=%7B%22a%22%3A%5B1%2C%22%C3%A9%22%5D%7D"
    operation = {"parameters": [{"name": "q", "in": "path", "content": {"application/json": {"schema": {}}}}]}
    assert made(operation, {"q": "a"}, "/x/{q}").target == "/x/%22a%22"


@pytest.mark.parametrize(
    "value", ["..", ".", "../admin", "a/../b", "..\\x", "x/..", ["a", ".."], "", None, "a\nb", "\0"]
)
def test_a_value_never_leads_to_another_path(value):
    with pytest.raises(UnfitArguments, match="`c`"):
        written("path", "simple", False, value)


@pytest.mark.parametrize(
    ("path", "arguments"),
    [("/x/.{a}", {"a": "."}), ("/x/{a}{b}", {"a": "", "b": ".."}), ("/{a}{b}", {"a": ".", "b": "."})],
)
def test_nor_do_two_values_beside_each_other(path, arguments):
    parameters = [{"name": name, "in": "path", "schema": {}} for name in arguments]
    with pytest.raises(UnfitArguments):
        made({"parameters": parameters}, arguments, path)


def test_headers_are_checked_and_never_replace_those_of_the_backend():
    operation = {
        "parameters": [{"name": "X-Key", "in": "header", "schema": {}}, {"name": "X-Two", "in": "header", "schema": {}}]
    }
    asked = made(operation, {"X-Key": "mine", "X-Two": ["a", "b"]}, headers={"x-key": "secret"})
    assert (b"X-Two", b"a,b") in asked.headers
    assert b"mine" not in b"".join(value for _, value in asked.headers)
    with pytest.raises(UnfitArguments, match="in a header"):
        made(operation, {"X-Two": "a\r\nX-Evil: 1"})


def test_a_credential_goes_into_the_query_where_the_document_wants_it():
    api = api_of(SHOP)
    base, sent = base_of(api, "/v1?fixed=1", {"KEY": "s3 cret", "Accept-Language": "de"})
    assert sent == {"Accept-Language": "de"}
    assert request_of(api.operations[0], {"page": 2}, base).target == "/v1/items?fixed=1&page=2&key=s3%20cret"


def test_bodies():
    api = api_of(SHOP)
    by_name, (base, _) = {each.name: each for each in api.operations}, base_of(api, "/", {})
    asked = request_of(by_name["items_replace"], {"id": 4, "body_id": "x", "name": "lamp"}, base)
    assert (asked.method, asked.target, json.loads(asked.body)) == ("PUT", "/items/4", {"id": "x", "name": "lamp"})
    assert (b"Content-Type", b"application/json") in asked.headers
    bare = request_of(by_name["addPart"], {}, base)
    assert bare.body == b""
    assert (b"Content-Length", b"0") in bare.headers
    assert json.loads(request_of(by_name["addPart"], {"body": [{"name": "a"}]}, base).body) == [{"name": "a"}]


def test_what_is_missing_or_unknown_is_said_to_the_model():
    api = api_of(SHOP)
    by_name, (base, _) = {each.name: each for each in api.operations}, base_of(api, "/", {})
    with pytest.raises(UnfitArguments, match="`id` is required"):
        request_of(by_name["items_get"], {}, base)
    with pytest.raises(UnfitArguments, match="no argument `pages`; there are: `X-Trace`, `filter`, `page`, `tag`"):
        request_of(by_name["items_list"], {"pages": 1}, base)
    with pytest.raises(UnfitArguments, match="too long"):
        request_of(by_name["items_list"], {"tag": ["x" * 40_000]}, base)
