"""CredentialUses: from where principals come, remembered within bounds, and told where it is new."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from app.auth.credential_uses import (
    BUSY_S,
    KNOWN_MINUTES,
    MANY,
    MAX_ADDRESSES,
    MAX_PRINCIPALS,
    MEASURE_EVERY_S,
    MET_S,
    SAY_AGAIN_S,
    CredentialUses,
)
from app.domain import Principal
from app.telemetry.metrics import Metrics

LINE = "a credential is used from a new address"


class Rig:
    def __init__(self) -> None:
        self.now, self.metrics = 1000.0, Metrics("test")
        self.uses = CredentialUses(self.metrics.new_addresses, lambda: self.now)

    def note(self, address: str, who: Principal | None = None, times: int = 1) -> None:
        self.uses.tick()
        for _ in range(times):
            self.uses.note(who or holder(), address)

    def known(self, who: Principal | None = None) -> dict[str, int]:
        return {address: use.requests for address, use in self.uses.of((who or holder()).identity).items()}

    @property
    def new(self) -> float:
        return self.metrics.registry.get_sample_value("trunkline_credential_new_addresses_total") or 0.0


def holder(subject: str = "k1", tenant: str = "acme") -> Principal:
    return Principal(tenant, "key", subject, frozenset({"mcp:connect"}))


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    caplog.set_level(logging.INFO, "app.auth.credential_uses")
    return lambda: [each for each in caplog.records if each.getMessage() == LINE]


async def test_requests_are_counted_by_address_with_their_first_and_last_moment(rig, said):
    rig.note("192.0.2.1", times=3)
    rig.now = 1060.0
    rig.note("192.0.2.1")
    use = rig.uses.of(holder().identity)["192.0.2.1"]
    assert (use.requests, use.first_at, use.last_at) == (4, 1000.0, 1060.0)
    assert rig.known(holder("k2")) == rig.known(holder(tenant="zenith")) == {}
    assert (said(), rig.new) == ([], 0)


async def test_the_second_address_of_a_principal_is_told_once_and_counted(rig, said):
    rig.note("192.0.2.1")
    rig.note("198.51.100.7", times=1000)
    rig.note("192.0.2.1")
    (line,) = said()
    assert (line.client, line.principal, line.tenant, line.addresses) == ("198.51.100.7", "key k1", "acme", 2)
    assert rig.known() == {"192.0.2.1": 2, "198.51.100.7": 1000}
    assert rig.new == 1


async def test_a_token_that_was_made_anew_is_the_same_principal(rig, said):
    rig.note("192.0.2.1")
    rig.note("198.51.100.7", Principal("acme", "key", "k1", frozenset(), expires_at=5.0))
    assert len(said()) == 1


@pytest.mark.parametrize(
    ("one", "other", "is_new"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", False),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", True),
        ("fe80::1%eth0", "fe80::2%eth1", False),
        ("unknown", "192.0.2.1", True),
        ("no:address", "192.0.2.1", True),
    ],
)
async def test_who_has_an_address_of_ipv6_has_the_network_around_it(rig, said, one, other, is_new):
    rig.note(one)
    rig.note(other)
    assert (len(said()), rig.new) == (is_new, is_new)
    assert rig.known() == {one: 1, other: 1}


async def test_the_address_that_was_not_used_for_the_longest_goes_and_is_new_again(rig):
    for number in range(MAX_ADDRESSES):
        rig.now += 1
        rig.note(f"192.0.2.{number}")
    rig.now += 1
    rig.note("192.0.2.0")
    rig.now += 1
    rig.note("198.51.100.7")
    assert len(rig.known()) == MAX_ADDRESSES
    assert "192.0.2.1" not in rig.known()
    assert rig.known()["192.0.2.0"] == 2
    before = rig.new
    rig.note("192.0.2.1")
    assert rig.new == before + 1


async def test_a_principal_that_comes_from_everywhere_is_told_of_once_a_minute(rig, said):
    for number in range(1000):
        rig.now += 0.1
        rig.note(f"10.0.{number // 250}.{number % 250}")
    assert rig.new == 999
    assert MAX_ADDRESSES <= len(said()) <= MAX_ADDRESSES + 2  # in 100 s
    rig.now += SAY_AGAIN_S
    rig.note("198.51.100.7")
    assert rig.new == 1000 == len(said()) + sum(getattr(line, "left_out", 0) for line in said())
    assert said()[-1].addresses == MAX_ADDRESSES


async def test_of_many_principals_those_that_are_busy_stay(rig):
    busy = holder("busy")
    rig.note("192.0.2.1", busy)
    for number in range(2 * MAX_PRINCIPALS):
        rig.now += 0.001
        rig.note("192.0.2.1", holder(f"k{number}"))
        if number % 100 == 0:
            rig.note("192.0.2.1", busy)
    assert len(rig.uses._known) == MAX_PRINCIPALS
    assert rig.known(busy) == {"192.0.2.1": 201}
    assert rig.known(holder("k0")) == {}
    assert rig.known(holder(f"k{2 * MAX_PRINCIPALS - 1}")) == {"192.0.2.1": 1}


def test_a_new_address_is_shown_for_an_hour_with_its_share_of_the_requests():
    rig = Rig()
    rig.note("192.0.2.1", times=10)
    rig.note("198.51.100.7", times=3)
    (found,) = rig.uses.new_addresses()
    assert (found.identity, found.address) == (holder().identity, "198.51.100.7")
    assert (found.requests, found.all_requests, found.since) == (3, 13, rig.now)
    rig.now += MET_S + 1
    rig.uses.tick()
    assert list(rig.uses.new_addresses()) == []


def test_what_was_shown_of_a_principal_that_is_off_or_gone_has_passed_until_it_is_used_again():
    rig, other = Rig(), holder("k2")
    for who in (holder(), other):
        rig.note("192.0.2.1", who)
        rig.note("198.51.100.7", who)
        for _ in range(KNOWN_MINUTES):
            rig.uses.measure()
        rig.note("192.0.2.1", who, times=MANY * 2)
    rig.uses.measure()
    assert rig.uses.shown() == {holder().identity, other.identity}
    rig.uses.settle(lambda identity: identity == holder().identity)
    rig.uses.measure()
    assert rig.uses.shown() == {other.identity}
    assert "198.51.100.7" in rig.known(), "what is known of it is kept"
    rig.note("198.51.100.7")  # it was switched on again
    assert rig.uses.shown() == {holder().identity, other.identity}


def test_far_more_than_usual_is_shown_once_it_is_known_what_is_usual():
    rig = Rig()

    def minute(requests: int) -> None:
        rig.note("192.0.2.1", times=requests)
        rig.now += MEASURE_EVERY_S
        rig.uses.tick()
        rig.uses.measure()

    minute(MANY * 2)  # nobody knows yet whether that is much
    for _ in range(KNOWN_MINUTES):
        minute(10)
    assert list(rig.uses.busy()) == []
    minute(MANY * 10)
    (found,) = rig.uses.busy()
    assert (found.requests, found.since) == (MANY * 10, rig.now)
    assert found.usual < MANY
    began = rig.now
    minute(MANY * 10)
    (found,) = rig.uses.busy()
    assert found.since == began  # it goes on
    rig.now += BUSY_S + 1
    rig.uses.tick()
    assert list(rig.uses.busy()) == []


def test_a_busy_credential_that_is_always_so_is_not_shown():
    rig = Rig()
    for _ in range(KNOWN_MINUTES * 2):
        rig.note("192.0.2.1", times=MANY * 2)
        rig.now += MEASURE_EVERY_S
        rig.uses.tick()
        rig.uses.measure()
    assert list(rig.uses.busy()) == []
