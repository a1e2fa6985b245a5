"""What follows from what was found of a tool; where nothing was found, the tool counts as new."""

import pytest

from app.catalog.judging import judge, rejected, tools_of, withheld
from app.errors import ClientError
from app.storage.tools.approvals import Approvals
from tests.protocol.toolset.offers import offer, tool

OFFER = offer("red", tools=[tool("say"), tool("rm"), {"name": 7}, tool("say", description="again")])
NOTHING = Approvals("block", "accept", {})


@pytest.mark.parametrize(
    ("policy", "kept_back"),
    [("off", []), ("warn", ["rm"]), ("block", ["rm", "say"]), ("of a later version", ["rm", "say"])],
)
def test_the_policy_decides_by_the_stored_status(policy, kept_back):
    pins = {
        "rm": {"status": "rejected", "refusal": "it was rejected"},
        "say": {"status": "changed", "refusal": "changed"},
    }
    assert sorted(withheld(OFFER, pins, policy)) == kept_back


def test_what_nobody_has_judged_is_withheld_where_that_is_blocked():
    assert sorted(withheld(OFFER, {}, "block")) == ["rm", "say"]
    assert withheld(OFFER, {}, "warn") == {}
    approved = {"say": {"status": "approved", "refusal": ""}}
    assert list(withheld(OFFER, approved, "block")) == ["rm"]


def test_of_two_tools_with_one_name_the_first_is_judged():
    assert "description" not in tools_of(OFFER)["say"]
    assert {name: each["status"] for name, each in judge(OFFER, NOTHING, []).items()} == {"say": "new", "rm": "new"}


def test_without_a_policy_nothing_is_judged():
    assert judge(OFFER, Approvals("off", "accept", {}), []) == {}


def test_a_definition_that_is_too_large_cannot_be_decided_on():
    large = offer("red", tools=[tool("say", description="x" * 200_000)])
    assert judge(large, NOTHING, [])["say"]["fingerprint"] is None
    with pytest.raises(ClientError):
        rejected(large, ["say"], NOTHING, "me", None)
