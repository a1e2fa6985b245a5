"""PUBLIC_URL with a path, behind a proxy that strips it: whatever the gateway says of its addresses leads below it."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from tests.integration.gateway import ECHO, Gateway, running_gateway

PUBLIC = "https://gw.example.com/gw"


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("below"), PUBLIC_URL=PUBLIC) as gateway:
        yield gateway


def as_client(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_stream_names_an_endpoint_below_it(below: Gateway) -> None:
    echo = below.endpoint(ECHO)
    with httpx2.stream("GET", echo.sse, headers=as_client(echo.key)) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: endpoint"
        assert next(lines).startswith(f"data: /gw/t/{echo.tenant}/{echo.name}/messages?sessionId=")


def test_what_the_api_makes_is_below_it(below: Gateway) -> None:
    answer = httpx2.post(f"{below.url}/api/v1/tenants", json={"name": "made"}, headers=as_client(below.admin_key))
    assert (answer.status_code, answer.headers["location"]) == (201, "/gw/api/v1/tenants/made")


def test_a_refusal_and_the_registry_lead_below_it(below: Gateway) -> None:
    echo = below.endpoint(ECHO)
    below.api("PATCH", f"/tenants/{echo.tenant}", {"registry": "public"})
    listed = httpx2.get(f"{below.url}/registry/{echo.tenant}/v0.1/servers").json()
    assert all(
        remote["url"].startswith(PUBLIC + "/t/") for each in listed["servers"] for remote in each["server"]["remotes"]
    )


def test_the_console_leads_below_it(below: Gateway) -> None:
    with httpx2.Client(base_url=below.url, headers={"Origin": below.url}) as browser:
        asked = browser.get("/console/tenants")
        assert (asked.status_code, asked.headers["location"]) == (303, "/gw/console/sign-in?to=%2Fconsole%2Ftenants")
        form = {"key": below.admin_key, "to": "/console/tenants"}
        let_in = browser.post("/console/sign-in", data=form)
        cookie, _, about = let_in.headers["set-cookie"].partition("; ")
        assert (let_in.status_code, let_in.headers["location"]) == (303, "/gw/console/tenants")
        assert cookie.startswith("__Secure-trunkline-console=")
        assert about == "Path=/gw; HttpOnly; SameSite=Strict; Secure"
        for path in ("/console", "/console/tenants", "/console/tenants/default/keys", "/console/sign-in"):
            page = browser.get(path, headers={"Cookie": cookie})
            assert page.status_code == 200
            found = re.findall(r'(?:href|src|action|data-done)="([^"#?]+)', page.text)
            assert found
            assert [each for each in found if not each.startswith("/gw/console")] == []
