"""/api/docs: works without the internet, behind any path, under a strict policy; its files cost little to send."""

import gzip
import re
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest

from app.http import pages as module
from app.http.pages import pages
from app.node.application import build_api

DOCUMENT, PAGE = "/api/v1/openapi.json", "/api/docs"
ADDRESS = re.compile(r'(?:src|href|data-document)="([^"]*)"')


@pytest.fixture(scope="module")
def served() -> Any:
    health: Any = None
    return pages(build_api(), health)


async def get(served: Any, path: str, **headers: str) -> httpx2.Response:
    """As the front: a slash at the end is taken off, and stays in `raw_path`."""
    page = served[path.rstrip("/")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await page({**scope, "raw_path": path.encode()}, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gw") as http:
        return await http.get(path, headers={"Accept-Encoding": "identity", **headers})


@pytest.mark.parametrize("path", [PAGE, PAGE + "/"])
@pytest.mark.parametrize("prefix", ["", "/gateway"])
async def test_everything_on_the_page_is_here_whatever_path_a_proxy_puts_before_it(served, path, prefix):
    answer = await get(served, path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    found = {urljoin(prefix + path, each) for each in ADDRESS.findall(answer.text) if each != "data:,"}
    files = {f"{PAGE}/{name}" for name in (*module.FILES, "reader.js")}
    assert found == {prefix + each for each in (DOCUMENT, *files)}
    assert set(served) >= {DOCUMENT, *files}


@pytest.mark.parametrize("path", [PAGE, *(f"{PAGE}/{name}" for name in (*module.FILES, "reader.js"))])
async def test_nothing_comes_from_elsewhere_and_nothing_inline_runs(served, path):
    answer = await get(served, path)
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert not [
        source for sources in policy.values() for source in sources.split() if "http" in source or "*" in source
    ]
    assert answer.headers["x-content-type-options"] == "nosniff"
    if path == PAGE:
        assert "<script>" not in answer.text
        assert "://" not in answer.text
        assert not re.search(r"\son\w+=|style=", answer.text)


async def test_the_reader_knows_the_revision_of_our_document(served):
    """Of OpenAPI 3.1, which Swagger UI knows from 5.0 on."""
    text = (await get(served, f"{PAGE}/swagger-ui-bundle.js")).text
    version = re.search(r'PACKAGE_VERSION:"(\d+)\.', text)
    assert version is not None
    assert int(version[1]) >= 5
    assert (await get(served, DOCUMENT)).json()["openapi"].startswith("3.1")
    assert "validatorUrl: null" in (await get(served, f"{PAGE}/reader.js")).text  # else it asks a server of Swagger's


async def test_a_file_is_sent_compressed_in_pieces_and_not_twice(served):
    path = f"{PAGE}/swagger-ui-bundle.js"
    plain = await get(served, path)
    pieces: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        pieces.append(message)

    headers = [(b"accept-encoding", b"br, gzip")]
    await served[path]({"type": "http", "method": "GET", "headers": headers, "raw_path": path.encode()}, None, send)
    start, *bodies = pieces
    assert (b"content-encoding", b"gzip") in start["headers"]
    assert all(len(each["body"]) <= module.CHUNK_BYTES for each in bodies)
    assert [each["more_body"] for each in bodies] == [True] * (len(bodies) - 1) + [False]
    sent = b"".join(each["body"] for each in bodies)
    assert gzip.decompress(sent) == plain.content
    assert len(sent) < len(plain.content) / 2
    again = await get(served, path, **{"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await get(served, path, **{"If-None-Match": '"other"'})).status_code == 200


def test_nothing_is_read_before_somebody_asks(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: pytest.fail("the files are read at the start"))
    health: Any = None
    assert PAGE in pages(build_api(), health)
