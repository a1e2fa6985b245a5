"""…/access:explain: who is meant, where is looked, and who may ask. What it answers is compared with real calls in
tests/integration/test_access.py."""

from datetime import UTC, datetime

import pytest

from app.domain import Person
from tests.admin.rig import Rig
from tests.protocol.toolset.offers import offer, tool

PATH = "/api/v1/tenants/acme"
ANALYSTS = {"who": {"group": "analysts"}, "tools": ["q*"], "limits": {"requests_per_minute": 9, "calls_per_day": 99}}


@pytest.fixture
async def listed(rig: Rig) -> Rig:
    """A backend with a list, another without, and a toolset of both."""
    rig.offers.known[("acme", "echo")] = offer("echo", tools=[tool("query"), tool("drop")])
    rig.offers.known[("acme", "free")] = offer("free", tools=[tool("query")])
    await rig.ask("POST", f"{PATH}/backends", {"name": "free", "command": "cat"})
    changed = await rig.ask(
        "PATCH", f"{PATH}/backends/echo", {"access": [ANALYSTS, {"who": {"key": "k1"}, "tools": ["*"]}]}
    )
    assert changed.status_code == 200, changed.text
    members = [{"backend": "echo"}, {"backend": "free"}]
    made = await rig.ask("POST", f"{PATH}/toolsets", {"name": "both", "members": members, "access": [
        {"who": {"everyone": True}, "tools": ["free_*"]}]})  # fmt: skip
    assert made.status_code == 201, made.text
    return rig


async def whys(rig: Rig, query: str) -> dict[str, tuple[bool, str]]:
    found = (await rig.ask("GET", f"{PATH}/access:explain?{query}")).json()
    return {each["place"]: (each["allowed"], each["why"]) for each in found["items"]}


async def test_every_place_that_has_the_tool_is_looked_at_or_the_one_that_is_named(listed):
    assert await whys(listed, "as=alice&tool=query&group=analysts") == {
        "backends/echo": (True, "backends/echo: entry 1, group analysts, lists it"),
        "backends/free": (True, "backends/free has no list: whoever may connect may use all of it"),
    }
    assert await whys(listed, "as=alice&tool=query&at=echo") == {
        "backends/echo": (False, "backends/echo: no entry names them")
    }
    assert (await whys(listed, "as=key:k1&tool=echo_query&group=analysts"))["toolsets/both"] == (
        False,
        "toolsets/both: the entries that name them (1, everyone) do not list echo_query",
    )
    assert (await listed.ask("GET", f"{PATH}/access:explain?as=a&tool=rm&at=echo")).status_code == 404
    assert (await listed.ask("GET", f"{PATH}/access:explain?as=a&tool=rm&at=nowhere")).status_code == 404


async def test_the_limits_that_a_call_counts_for_are_named(listed):
    found = (await listed.ask("GET", f"{PATH}/access:explain?as=alice&tool=query&group=analysts&at=echo")).json()
    assert found["items"][0]["limits"] == ["backends/echo: 9 a minute, 99 a day"]


async def test_groups_of_whoever_has_signed_in_are_known(listed):
    for issuer, groups in (("https://one.example", {"analysts"}), ("https://two.example", {"others"})):
        person = Person("acme", issuer, "alice", frozenset(), datetime.now(UTC), groups=frozenset(groups))
        await listed.admin.people.put(person)
    refused = await listed.ask("GET", f"{PATH}/access:explain?as=alice&tool=query")
    assert refused.status_code == 422
    assert "several issuers know a person alice: name one" in refused.text
    for issuer, allowed in (("https://one.example", True), ("https://two.example", False)):
        found = await whys(listed, f"as=alice&tool=query&at=echo&issuer={issuer}")
        assert found["backends/echo"][0] == allowed


async def test_whoever_reads_the_tenant_may_ask_and_nobody_of_another(listed):
    query = f"{PATH}/access:explain?as=alice&tool=query"
    for scope, tenant, status in (
        ("tenant:read", "acme", 200),
        ("mcp:connect", "acme", 403),
        ("tenant:admin", "b", 404),
    ):
        await listed.ask("POST", "/api/v1/tenants", {"name": "b"}) if tenant == "b" else None
        key = await listed.key(tenant, scope)
        assert (await listed.ask("GET", query, key=key)).status_code == status


async def test_an_administrator_of_the_tenant_changes_the_list_of_a_command(listed):
    key = await listed.key("acme", "tenant:admin")
    changed = await listed.ask("PATCH", f"{PATH}/backends/echo", {"access": [ANALYSTS]}, key=key)
    assert changed.json()["access"] == [
        {
            "who": {
                "group": "analysts",
                "person": None,
                "issuer": None,
                "key": None,
                "client": None,
                "everyone": False,
            },
            "tools": ["q*"],
            "prompts": [],
            "resources": [],
            "limits": {"requests_per_minute": 9, "calls_per_day": 99},
        }
    ]
    assert (await listed.trail("acme"))[-1].changes[0].member == "access"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"tools": ["*"]}, "entry 1: `who` has one of"),
        ({"who": {"group": "a", "key": "b"}, "tools": ["*"]}, "entry 1: `who` has one of"),
        ({"who": {"key": "b", "issuer": "c"}, "tools": ["*"]}, "`issuer` goes with a group or a person"),
        ({"who": {"everyone": True}}, "entry 1 allows nothing"),
        ({"who": {"everyone": True}, "tools": "say"}, "list"),
        ({"who": {"everyone": True}, "tool": ["say"]}, "tool"),
        ({"who": {"everyone": True}, "tools": ["*"], "limits": {"calls_per_day": 0}}, "calls_per_day"),
    ],
)
async def test_a_wrong_entry_is_refused_in_words(rig, entry, words):
    refused = await rig.ask("PATCH", f"{PATH}/backends/echo", {"access": [entry]})
    assert refused.status_code in (400, 422)
    assert words in refused.text
