"""Bodies of the REST API are UTF-8 (RFC 8259, 8.1), whatever Python's decoder would make of them."""

import codecs
import json

import pytest

BODY = json.dumps({"name": "m\u00fcller"}, ensure_ascii=False)


@pytest.mark.parametrize(
    "content",
    [
        BODY.encode("latin-1"),
        BODY.encode("utf-16"),
        BODY.encode("utf-16-le"),
        BODY.encode("utf-32-be"),
        codecs.BOM_UTF8 + BODY.encode(),
        b'{"name": "\xed\xa0\x80"}',
        b'{"name": "\xc0\xae"}',
        b'{"name": "a\x00"}',
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/v1/tenants/acme/keys"), ("PATCH", "/api/v1/tenants/acme/backends/echo")]
)
async def test_another_encoding_is_a_400(rig, method, path, content):
    answer = await rig.ask(method, path, content=content)
    assert (answer.status_code, answer.json()["reason"]) == (400, "parse_error")


async def test_utf8_is_read(rig):
    body = json.dumps({"name": "m\u00fcller", "scopes": ["mcp:connect"]}, ensure_ascii=False).encode()
    answer = await rig.ask("POST", "/api/v1/tenants/acme/keys", content=body)
    assert (answer.status_code, answer.json()["name"]) == (201, "m\u00fcller")
