"""Responses become results."""

import base64
import json

import pytest

from app.protocol.openapi.results import MAX_ERROR_BYTES, Secrets, result_of

URI, NONE = "https://api.example/x", Secrets([])


def result(status, media_type, body):
    return json.loads(result_of(status, media_type, body, URI, NONE))


def test_an_object_is_shown_as_text_and_structured():
    found = result(200, b"application/json; charset=utf-8", b'{\n "a": 12345678901234567890123 }')
    assert found["content"] == [{"type": "text", "text": '{"a":12345678901234567890123}'}]
    assert b'"structuredContent":{"a":12345678901234567890123}' in result_of(
        200, b"application/json", b'{"a":12345678901234567890123}', URI, NONE
    )
    assert found["isError"] is False


@pytest.mark.parametrize(
    ("media_type", "body", "text"),
    [
        (b"application/json", b"[1, 2]", "[1,2]"),
        (b"application/problem+json", b'"a"', '"a"'),
        (b"application/json", b"{broken", "{broken"),
        (b"application/json", b"\xff", "\ufffd"),
        (b"text/plain", b"caf\xc3\xa9", "café"),
        (b"text/plain; charset=ISO-8859-1", b"caf\xe9", "café"),
        (b"text/plain; charset=none-such", b"a", "a"),
        (b"application/atom+xml", b"<a/>", "<a/>"),
        (b"", b"words", "words"),
        (b"application/json", b"", "HTTP 204: the answer has no content"),
    ],
)
def test_other_answers_are_text(media_type, body, text):
    found = result(204 if not body else 200, media_type, body)
    assert found == {"content": [{"type": "text", "text": text}], "isError": False}


def test_what_is_no_text_is_passed_by_its_kind():
    data = base64.b64encode(b"\x89PNG").decode()
    assert result(200, b"image/png", b"\x89PNG")["content"] == [
        {"type": "image", "data": data, "mimeType": "image/png"}
    ]
    assert result(200, b"audio/ogg", b"\x89PNG")["content"][0]["type"] == "audio"
    (found,) = result(200, b"application/zip", b"\x89PNG")["content"]
    assert found == {"type": "resource", "resource": {"uri": URI, "mimeType": "application/zip", "blob": data}}
    assert result(200, b"", b"\xff\xfe")["content"][0]["resource"]["mimeType"] == "application/octet-stream"


def test_an_error_has_its_status_and_the_beginning_of_its_body():
    found = result(404, b"application/json", b'{"message":"none"}')
    assert found == {
        "content": [{"type": "text", "text": 'The API answered HTTP 404 Not Found.\n\n{"message":"none"}'}],
        "isError": True,
    }
    long = result(500, b"text/plain", b"x" * (MAX_ERROR_BYTES + 1))["content"][0]["text"]
    assert long.endswith("x…")
    assert result(599, b"application/zip", b"\xff")["content"][0]["text"] == "The API answered HTTP 599."


def test_secrets_are_hidden_wherever_they_are_repeated():
    secrets = Secrets(["Bearer s3cret-token", 'quo"ted-one', "on"])
    body = b'{"auth":"Bearer s3cret-token","again":"s3cret-token","q":"quo\\"ted-one","on":"on"}'
    assert secrets.hidden_in(body) == b'{"auth":"***","again":"***","q":"***","on":"on"}'
    assert Secrets([]).hidden_in(body) == body


@pytest.mark.parametrize(
    "shown",
    [
        "ab+cd/e =",
        "ab%2Bcd%2Fe%20%3D",
        "ab%2bcd%2fe%20%3d",
        "ab%2Bcd/e+%3D",
        "ab+cd\\/e =",
        "ab\\u002Bcd\\u002fe \\u003d",
    ],
)
def test_secrets_are_hidden_also_as_an_address_or_a_text_of_json_has_them(shown):
    assert Secrets(["ab+cd/e ="]).hidden_in(f"/x?key={shown}&a=1".encode()) == b"/x?key=***&a=1"


@pytest.mark.parametrize("word", ["\\+", "\\/", "\\", "%25", "%", " +"])
def test_to_look_for_them_takes_no_long_time(word):
    for body in (word * 2, "\\" + word, word + "25"):
        assert Secrets([f"{word * 40}x"]).hidden_in(body.encode() * 80) == body.encode() * 80


def test_the_end_of_what_is_shown_of_an_error_is_no_part_of_a_secret():
    secret = "s3cret" * 10
    body = f"{'x' * (MAX_ERROR_BYTES - 20)}{secret}{'y' * 99}".encode()
    found = json.loads(result_of(500, b"text/plain", body, URI, Secrets([secret])))["content"][0]["text"]
    assert found.endswith("xx***…")
    body = f"{secret}{'é' * MAX_ERROR_BYTES}".encode()
    found = json.loads(result_of(500, b"", body[: MAX_ERROR_BYTES + 201], URI, Secrets([secret])))
    assert "***éé" in found["content"][0]["text"]  # a text, though its last character is cut
