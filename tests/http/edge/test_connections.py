"""How many connections there may be, counted without sockets."""

import asyncio
import ipaddress
from itertools import count
from typing import Any

import pytest

from app.http.client_address import TrustedProxies
from app.http.edge._refusals import Refusal
from app.http.edge.connections import (
    FRESH_S,
    TURNS_PER_ROUND,
    ConnectionLimits,
    Connections,
    descriptors_for_connections,
)


class Line:
    """A connection whose state the test sets."""

    def __init__(self, *, since: float = 0.0, is_dispensable: bool = True) -> None:
        self.deadline, self.since, self.is_dispensable, self.is_stuck = 1e9, since, is_dispensable, False
        self.has_unread = False
        self.given_up: list[str] = []

    def look(self) -> None: ...

    def give_up(self, refusal: Refusal) -> None:
        self.given_up.append(refusal.reason)
        self.among.leave(self)

    def end_with_answer(self) -> None: ...

    is_kept = False
    among: Connections


def connections(*, proxies: str = "10.0.0.0/8", **limits: Any) -> Connections:
    return Connections(ConnectionLimits(**limits), TrustedProxies([ipaddress.ip_network(proxies)]))


def admit(among: Connections, line: Line, address: str = "192.0.2.1", descriptor: int = 9) -> str | None:
    line.among = among
    refusal = among.admit(line, address, descriptor)
    return None if refusal is None else refusal.reason


def test_an_address_has_so_many_and_another_one_its_own() -> None:
    among = connections(per_address=2)
    first, second = Line(), Line()
    assert [admit(among, each) for each in (first, second, Line())] == [None, None, "address_limit"]
    assert admit(among, Line(), "192.0.2.2") is None
    assert len(among) == 3
    among.leave(first)
    among.leave(first)
    assert admit(among, Line()) is None


def test_the_addresses_of_one_ipv6_network_count_together() -> None:
    among = connections(per_address=2)
    addresses = [f"2001:db8::{number}" for number in range(3)]
    assert [admit(among, Line(), each) for each in addresses] == [None, None, "address_limit"]
    assert admit(among, Line(), "2001:db8:0:1::1") is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3"])
def test_this_machine_and_trusted_proxies_are_not_counted(address: str) -> None:
    among = connections(per_address=1)
    assert [admit(among, Line(), address) for _ in range(3)] == [None] * 3


def test_an_address_where_a_node_of_ours_is_counts_no_longer() -> None:
    among = connections(per_address=1)
    node = Line()
    assert admit(among, node) is None
    assert admit(among, Line()) == "address_limit"
    among.trust_node(node, "192.0.2.1")
    assert [admit(among, Line()) for _ in range(3)] == [None] * 3
    among.leave(node)
    assert (len(among), among._of_address) == (3, {})


def test_the_longest_idle_that_may_go_makes_room() -> None:
    among = connections(connections=4)
    guest, oldest, old, young = Line(is_dispensable=False), Line(since=1), Line(since=2), Line(since=3)
    for each in (young, guest, old, oldest):
        admit(among, each)
    assert admit(among, Line(since=4)) is None
    assert [each.given_up for each in (guest, oldest, old, young)] == [[], ["made_room"], ["made_room"], []]
    assert len(among) == 3


def test_whose_request_has_arrived_does_not_make_room() -> None:
    among = connections(connections=2)
    asking, idle = Line(since=1), Line(since=2)
    asking.has_unread = True
    for each in (asking, idle):
        admit(among, each)
    assert admit(among, Line(since=3)) is None
    assert [each.given_up for each in (asking, idle)] == [[], ["made_room"]]


def test_where_descriptors_run_short_somebody_makes_room_or_the_newcomer_goes() -> None:
    among = connections(descriptors=100, last_descriptor=100, per_address=5)
    stranger = Line()
    assert admit(among, stranger, descriptor=99) is None
    assert admit(among, Line(is_dispensable=False), descriptor=100) is None
    assert stranger.given_up == ["made_room"]
    assert admit(among, Line(), descriptor=100) == "descriptors_short"
    assert (len(among), len(among._of_address)) == (1, 1)
    among.sweep()
    assert [admit(among, Line()) for _ in range(4)] == [None] * 4  # who was refused is not counted


def test_descriptors_that_are_given_back_are_not_filled_beyond_what_there_was_room_for() -> None:
    free, clock = [0], count()  # seconds: nobody is fresh
    among = Connections(
        ConnectionLimits(descriptors=100, last_descriptor=100),
        clock=lambda: float(next(clock)),
        free_descriptor=lambda: free[0],
    )
    for number in range(50):
        assert admit(among, Line(since=number)) is None
    assert admit(among, Line(since=50), descriptor=100) is None  # now it is known that there is room for fifty
    for number in range(100):
        assert admit(among, Line(since=100 + number), descriptor=number) is None
        assert len(among) <= 50
    among.sweep()
    for number in range(100):
        assert admit(among, Line(since=300 + number), descriptor=number) is None
    assert len(among) > 140
    free[0] = 100
    among.sweep()  # others have opened files: connections go without a newcomer, too
    assert len(among) < 150


def test_a_full_node_makes_room_for_many_at_once() -> None:
    among = connections(connections=640)
    lines = [Line(since=number) for number in range(640)]
    for each in lines:
        admit(among, each)
    admit(among, Line(since=999))
    assert [bool(each.given_up) for each in lines] == [True] * 10 + [False] * 630


def test_a_quarter_of_the_descriptors_is_not_for_strangers_and_a_part_for_no_connection() -> None:
    assert descriptors_for_connections(256) == (192, 240)
    assert descriptors_for_connections(1024) == (768, 960)
    assert descriptors_for_connections(10_000) == (8_976, 9_375)
    assert descriptors_for_connections(65_536) == (61_440, 61_440)
    assert descriptors_for_connections(64) == (32, 57)


def test_who_was_just_there_need_not_make_room_while_sessions_leave_a_descriptor() -> None:
    now = 0.0
    limits = ConnectionLimits(descriptors=100, last_descriptor=120, connections=4)
    among = Connections(limits, clock=lambda: now)
    stranger, fresh = Line(), Line(since=1)
    assert admit(among, stranger, descriptor=99) is None
    now = 1.0
    assert admit(among, fresh, descriptor=100) is None
    assert stranger.given_up == ["made_room"]
    assert admit(among, Line(is_dispensable=False), descriptor=100) is None
    assert fresh.given_up == []  # its first request is on its way, and there is room beside it
    now += FRESH_S
    assert admit(among, Line(is_dispensable=False), descriptor=101) is None
    assert fresh.given_up == ["made_room"]


def test_a_crowd_that_came_at_once_gives_sessions_their_descriptors_back() -> None:
    now = 0.0
    limits = ConnectionLimits(descriptors=100, last_descriptor=120)
    among = Connections(limits, clock=lambda: now, free_descriptor=lambda: 109)
    crowd = [Line() for _ in range(20)]
    for number, each in enumerate(crowd):
        assert admit(among, each, descriptor=90 + number) is None
    assert not any(each.given_up for each in crowd)
    assert among.lent() == 9
    assert admit(among, Line(is_dispensable=False), descriptor=110) is None
    assert [bool(each.given_up) for each in crowd] == [True] * 10 + [False] * 10
    now = 1.0
    among.sweep()
    assert all(each.given_up for each in crowd)
    assert among.lent() == 0  # who has got the descriptors of sessions keeps them


def test_connections_get_descriptors_that_sessions_leave_to_them_up_to_the_last() -> None:
    among = connections(descriptors=100, last_descriptor=120, connections=3)
    assert admit(among, Line(is_dispensable=False), descriptor=119) is None
    assert admit(among, Line(is_dispensable=False), descriptor=120) == "descriptors_short"
    assert admit(among, Line(is_dispensable=False), descriptor=3) is None
    assert admit(among, Line(is_dispensable=False), descriptor=4) is None
    assert admit(among, Line(is_dispensable=False), descriptor=5) == "connection_limit"


def test_requests_through_a_proxy_count_for_the_client_behind_it() -> None:
    among = connections(per_address=2)
    counted = among.counted_as("192.0.2.1")
    assert counted is not None
    assert [among.take(counted) for _ in range(3)] == [True, True, False]
    among.give_back(counted)
    assert among.take(counted)
    assert among.counted_as("10.0.0.1") is None


async def test_a_turn_that_fails_does_not_hold_up_those_behind_it() -> None:
    among, errors, had_their_turn = connections(), list[Any](), list[int]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    among.take_turns(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    for number in range(2 * TURNS_PER_ROUND):
        among.take_turns(lambda number=number: had_their_turn.append(number))  # type: ignore[misc]
    for _ in range(4):
        await asyncio.sleep(0)
    assert [type(each) for each in errors] == [ZeroDivisionError]
    assert had_their_turn == list(range(2 * TURNS_PER_ROUND))
