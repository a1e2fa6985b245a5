"""Texts of documents, as they are given."""

import base64
import gzip
import hashlib

import pytest

from app.protocol.openapi.document import MAX_DOCUMENT_BYTES, UnfitDocument, is_mark, is_url, mark_of, text_of


def test_a_text_and_a_packed_one():
    text = "openapi: 3.1.0\npaths: {}\n"
    assert text_of(text) == text.encode()
    assert text_of("<!doctype html>") == b"<!doctype html>"  # so that it is called that
    marked = '\ufeff{"openapi": "3.1.0"}'  # with a byte order mark, as some editors write it
    assert text_of(marked) == marked.encode()
    data = base64.b64encode(gzip.compress(text.encode())).decode()
    assert text_of(f"data:;base64,{data}") == text_of(f"data:application/gzip;base64,{data}") == text.encode()
    assert mark_of(text.encode()) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert is_mark(mark_of(b""))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("./petstore.yaml", "neither a URL nor a document"),
        ("a.html", "neither a URL nor a document"),
        ("\ufeff./petstore.yaml", "neither a URL nor a document"),
        ("", "neither a URL nor a document"),
        ("data:;base64,AAAA", "not gzip in Base64"),
        ("data:;base64,!", "not gzip in Base64"),
        ("a:\n" + "x" * MAX_DOCUMENT_BYTES, "more than 16 MiB"),
        ("sha256:" + "0" * 64, "give the document itself"),
        (
            "data:;base64," + base64.b64encode(gzip.compress(b"0" * (MAX_DOCUMENT_BYTES + 1))).decode(),
            "more than 16 MiB",
        ),
    ],
)
def test_what_is_neither(given, words):
    with pytest.raises(UnfitDocument, match=words):
        text_of(given)


def test_addresses():
    assert is_url("https://api.example/openapi.json")
    assert not is_url("https://api.example/ x")
    assert not is_url("openapi: 3.1.0")
