"""Documents are read by a process of their own."""

import base64
import gzip
import hashlib
import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.backends.openapi import documents
from app.backends.openapi.apis import Apis
from app.backends.openapi.documents import Documents
from app.domain import BackendSpec
from app.errors import UpstreamFailed
from app.protocol.openapi.api import encoded, packed, unpacked
from app.protocol.openapi.document import UnfitDocument, mark_of
from app.protocol.openapi.making import api_of
from tests.protocol.openapi.documents import SHOP

KEY = ("acme", "shop")
TEXT = json.dumps(SHOP)
pytestmark = pytest.mark.real


async def fetched(key: tuple[str, str], url: str) -> bytes:
    assert key == KEY
    if url.endswith("none"):
        raise UpstreamFailed("HTTP 404")
    if url.endswith("relative"):
        return json.dumps({**SHOP, "servers": [{"url": "/api/v3"}]}).encode()
    return TEXT.encode()


async def nothing(tenant: str, name: str) -> None:
    return None


def reader() -> Documents:
    return Documents(fetched, Apis(nothing))


@pytest.mark.parametrize(
    "given", [TEXT, "data:;base64," + base64.b64encode(gzip.compress(TEXT.encode())).decode()], ids=["plain", "packed"]
)
async def test_what_is_made_of_a_text(given: str):
    made = await reader().made(KEY, given)
    assert made.source == mark_of(TEXT.encode())
    assert made.server == "https://eu.shop.example/v1"
    assert len(unpacked(made.stored).operations) == 6
    assert len(made.digest) == len(hashlib.sha256().hexdigest())


async def test_what_is_made_of_an_address():
    made = await reader().made(KEY, "https://far.example/openapi.json")
    assert made.source == "https://far.example/openapi.json"
    assert made.digest == (await reader().made(KEY, TEXT)).digest
    assert (await reader().made(KEY, "https://far.example/docs/relative")).server == "https://far.example/api/v3"
    with pytest.raises(UpstreamFailed):
        await reader().made(KEY, "https://far.example/none")


async def test_what_is_wrong_is_said_by_the_process():
    with pytest.raises(UnfitDocument, match="is of version 9"):
        await reader().made(KEY, '{"openapi": "9"}')


async def test_a_document_that_takes_too_long_is_given_up_with_its_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "READ_S", 0.001)
    with pytest.raises(UnfitDocument, match="could not be read in time"):
        await reader().made(KEY, TEXT)


async def test_a_process_that_ends_otherwise_is_said_to_have_had_too_much(monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(documents, "_PROGRAM", "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)")
    with pytest.raises(UnfitDocument, match="too large or intricate"):
        await reader().made(KEY, TEXT)
    assert "A document could not be read" in caplog.text


async def test_what_was_left_out_is_told_also_where_nothing_is_known():
    spec = BackendSpec("acme", "shop", "", url="https://shop.example", openapi="sha256:x")
    assert await reader().left_out(spec) == ["what was made of its document is gone: give the document again"]
    assert await reader().left_out(replace(spec, openapi=None)) == []


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, 1), ({"headers": {"Key": "x"}}, 0), ({"url": "https://shop.example/v1?key=x"}, 0)],
)
async def test_a_credential_that_is_not_sent_is_told(given: dict[str, Any], count: int):
    made = packed(encoded(api_of({**SHOP, "security": [{"key": []}]})))

    async def stored(tenant: str, name: str) -> tuple[str, bytes]:
        return "digest", made

    spec = replace(BackendSpec("acme", "shop", "", url="https://shop.example/v1", openapi="sha256:x"), **given)
    left_out = await Documents(fetched, Apis(stored)).left_out(spec)
    assert left_out.count("the document asks for `key`: give it in `headers`") == count
    assert len(left_out) == 7 + count


async def test_several_are_read_at_once_but_not_many():
    """Who waits is not forgotten."""
    made = reader()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(made.made, KEY, TEXT)
