"""Which member a URI belongs to by templates: every URI that no list has is compared with them, so that is bounded."""

import pytest

from app.protocol.toolset.listing import ToolsetListing
from tests.protocol.toolset.offers import offer, shown


def listing(*templates: str) -> ToolsetListing:
    made = [{"name": f"r{number}", "uriTemplate": each} for number, each in enumerate(templates)]
    return ToolsetListing([shown("red", None), shown("blue", offer("blue", templates=made))])


@pytest.mark.parametrize(
    ("template", "uri", "does"),
    [
        ("file:///{name}", "file:///a.txt", True),
        ("file:///{name}", "file:///a/b.txt", False),
        ("file:///{+path}", "file:///a/b.txt", True),
        ("db://{table}/rows/{id}", "db://users/rows/7", True),
        ("db://{table}/rows/{id}", "db://users/cols/7", False),
        ("db://{table}{?limit,offset}", "db://users?limit=3", True),
        ("x://{a}{b}", "x://yz", True),
        ("x://{a}.json", "x://.json", True),
        ("x://{a}.json", "x://jso", False),
        ("x://fixed", "x://fixed", True),
        ("x://fixed", "x://fixed2", False),
        ("x://{unclosed", "x://{unclosed", True),
        ("", "", True),
    ],
)
def test_a_template_matches_what_it_may_have_made(template, uri, does):
    assert (listing(template).member_of_uri(uri) == 1) is does


def test_a_uri_is_compared_with_the_first_thousand_templates():
    every = listing(*(f"x{number}://{{a}}" for number in range(1001)))
    assert every.member_of_uri("x999://y") == 1
    assert every.member_of_uri("x1000://y") is None
    assert every.member_of_reference("x1000://{a}") == 1


def test_a_template_with_many_variables_and_a_long_uri_are_compared_with_nothing():
    assert listing("x://" + "{+a}/" * 16).member_of_uri("x://" + "a/" * 16) == 1
    assert listing("x://" + "{+a}/" * 17).member_of_uri("x://" + "a/" * 17) is None
    assert listing("x://{a}").member_of_uri("x://" + "a" * 1996) == 1
    assert listing("x://{a}").member_of_uri("x://" + "a" * 1997) is None
