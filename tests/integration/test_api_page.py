"""/api/docs in a real browser that reaches nothing but the gateway."""

import re
import shutil
import subprocess

import httpx2
import pytest

from tests.integration.gateway import Gateway

WITHIN_S = 60
OFFLINE = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--no-proxy-server"]
NOBODY_ELSE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@pytest.mark.e2e
@pytest.mark.parametrize("path", ["/api/docs", "/api/docs/"])
def test_a_browser_without_the_internet_shows_every_route(gateway: Gateway, path: str) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    show = ["--headless", "--virtual-time-budget=15000", "--dump-dom", gateway.url + path]
    done = subprocess.run(
        [browser, *OFFLINE, NOBODY_ELSE, *show], capture_output=True, text=True, timeout=WITHIN_S, check=True
    )
    routes = httpx2.get(gateway.url + "/api/v1/openapi.json", timeout=30).json()["paths"]
    assert "Content Security Policy" not in done.stderr
    shown = re.sub(r"[{}\u200b]|<wbr>", "", done.stdout)  # Swagger UI breaks long paths
    assert [route for route in routes if re.sub("[{}]", "", route) not in shown] == []


def test_the_page_and_its_files_are_answered_by_a_node(gateway: Gateway) -> None:
    for path in ("/api/docs", "/api/docs/", "/api/docs/swagger-ui-bundle.js", "/api/docs/swagger-ui.css"):
        answer = httpx2.get(gateway.url + path)
        assert answer.status_code == 200, path
        assert "'unsafe" not in answer.headers["content-security-policy"]
        asked = httpx2.head(gateway.url + path)
        assert (asked.status_code, asked.content, asked.headers["etag"]) == (200, b"", answer.headers["etag"])
    assert httpx2.get(gateway.url + "/api/docs/other.js").status_code == 404
