"""Inspection and Inspections: limits, and the end."""

import pytest

from app.errors import Conflict, QuotaExceeded
from app.telemetry.capture.captured_message import InspectedMessage, Numbers, Place
from app.telemetry.capture.inspection import About, Inspection
from app.telemetry.capture.inspections import KEPT_S, MAX_ENDED, MAX_OPEN_OF_TENANT, Inspections
from app.telemetry.capture.masking import Mask

KEY = ("default", "key", "root")


def about(id: str, tenant: str = "acme", *, payloads: bool = True, ends_at: float = 100.0) -> About:
    return About(id, tenant, "echo", f"s-{id}", "streamable", payloads, "why", KEY, 0.0, ends_at)


def say(inspection: Inspection, text: str, member: str = "") -> int:
    number = inspection.numbers.next()
    line = text.encode()
    inspection.add(
        InspectedMessage(number, 1.0, "client", "to_server", "notification", "x", "", "", member, len(line)), line
    )
    return number


def texts(inspection: Inspection) -> list[str | None]:
    return [each.payload for each in inspection.after(0)]


def test_the_oldest_is_dropped_where_one_is_full_and_the_others_stay() -> None:
    dropped: list[int] = []
    inspections = Inspections(80_000, on_dropped=dropped.append)
    one, other = inspections.open(about("1"), Mask()), inspections.open(about("2"), Mask())
    say(other, '"kept"')
    for number in range(30):
        say(one, f'"{number:04d}{"x" * 1000}"')
    assert one.bytes <= 10_000
    assert len(one) + one.dropped == 30
    assert sum(dropped) == one.dropped > 0
    last = texts(one)[-1]
    assert last is not None
    assert last.startswith('"0029')
    assert texts(other) == ['"kept"']
    assert one.message(1) is None
    found = one.message(30)
    assert found is not None
    assert found.number == 30


def test_a_tenant_may_have_half_of_the_memory_and_all_together_the_whole() -> None:
    inspections = Inspections(80_000)
    for tenant in ("acme", "zenith", "third"):
        for number in range(8):
            inspection = inspections.open(about(f"{tenant}{number}", tenant), Mask())
            for _ in range(20):
                say(inspection, f'"{"x" * 1000}"')
    assert inspections.bytes <= 80_000
    assert sum(each.bytes for each in inspections.of("acme")) <= 40_000
    assert sum(each.bytes for tenant in ("acme", "zenith", "third") for each in inspections.of(tenant)) == (
        inspections.bytes
    )


def fill(inspections: Inspections, tenant: str, count: int = 8) -> list[Inspection]:
    """With more than the tenant may have."""
    opened = [inspections.open(about(f"{tenant}{number}", tenant), Mask()) for number in range(count)]
    for inspection in opened:
        for _ in range(20):
            say(inspection, f'"{"x" * 1000}"')
    return opened


def test_tenants_that_have_filled_the_memory_leave_others_an_equal_share() -> None:
    inspections = Inspections(80_000)
    fill(inspections, "acme")
    fill(inspections, "zenith")
    quiet = inspections.open(about("quiet", "quiet"), Mask())
    say(quiet, '"small"')
    late = fill(inspections, "late", 4)
    shares = {name: sum(each.bytes for each in inspections.of(name)) for name in ("acme", "zenith", "late", "quiet")}
    assert texts(quiet) == ['"small"'], "who has less than its share loses nothing"
    assert min(shares[name] for name in ("acme", "zenith", "late")) > 80_000 / 3 - 3 * 1500
    assert all(each.bytes for each in late), "nor does an inspection of a tenant whose others are larger"
    assert inspections.bytes == sum(shares.values()) <= 80_000


def test_a_tenant_whose_share_is_used_up_takes_from_its_largest_inspection() -> None:
    inspections = Inspections(80_000)
    fill(inspections, "acme", 4)
    newcomer = inspections.open(about("new"), Mask())
    say(newcomer, '"first words"')
    assert texts(newcomer) == ['"first words"']


def test_a_message_that_never_fits_is_counted() -> None:
    inspection = Inspections(8_000).open(about("1"), Mask())
    say(inspection, '"small"')
    say(inspection, f'"{"x" * 2000}"')
    assert (texts(inspection), inspection.dropped) == (['"small"'], 1)


def test_limits_and_one_inspection_of_a_session() -> None:
    inspections = Inspections(8 << 20)
    inspections.open(about("0"), Mask())
    with pytest.raises(Conflict, match="already: 0"):
        inspections.open(about("0"), Mask())
    for number in range(1, MAX_OPEN_OF_TENANT):
        inspections.open(about(str(number)), Mask())
    with pytest.raises(QuotaExceeded):
        inspections.open(about("one more"), Mask())
    inspections.open(about("1", "zenith"), Mask())
    with pytest.raises(Conflict, match="INSPECTION_MEMORY_MB"):
        Inspections(0).open(about("0"), Mask())


def test_after_its_time_what_it_saw_can_be_read_for_ten_minutes() -> None:
    ended: list[Inspection] = []
    inspections = Inspections(8 << 20, on_end=ended.append)
    inspection = inspections.open(about("1", ends_at=10.0), Mask())
    say(inspection, '"x"')
    inspections.sweep(9.0)
    assert inspection.is_open
    inspections.sweep(10.0)
    assert (inspection.ending, ended, len(inspections)) == ("time", [inspection], 0)
    say(inspection, '"later"')
    assert texts(inspections.of("acme")[0]) == ['"x"']
    inspections.sweep(10.0 + KEPT_S + 1)
    assert texts(inspection) == []
    assert inspections.bytes == 0


@pytest.mark.parametrize("ending", ["closed", "revoked", "forbidden"])
def test_other_ends_remove_it_at_once_also_of_one_that_had_run_out(ending: str) -> None:
    inspections = Inspections(8 << 20)
    old, new = inspections.open(about("1", ends_at=10.0), Mask()), inspections.open(about("2"), Mask())
    for each in (old, new):
        say(each, '"x"')
    inspections.sweep(10.0)
    assert inspections.end_where(lambda each: True, 11.0, ending) == 1  # type: ignore[arg-type]
    assert (texts(old), texts(new)) == ([], [])
    assert (old.ending, new.ending) == ("time", ending)


def test_a_bounded_number_of_ended_ones_is_listed() -> None:
    inspections = Inspections(8 << 20)
    for number in range(MAX_ENDED + 5):
        inspection = inspections.open(about(str(number)), Mask())
        say(inspection, '"x"')
        inspections.end(inspection, 1.0, "time" if number < 5 else "closed")
    assert len(inspections.of("acme")) == MAX_ENDED
    assert inspections.find("acme", "0") is None
    assert inspections.bytes == 0
    assert inspections.find("zenith", "10") is None
    inspections.forget("acme")
    assert inspections.of("acme") == []


def test_the_secrets_of_a_member_are_learned_and_without_them_no_payload_is_kept() -> None:
    secrets = {"red": ["red-secret-value"]}
    inspection = Inspections(8 << 20).open(about("1"), Mask(), secrets.get)
    say(inspection, '"red-secret-value"')
    say(inspection, '"red-secret-value"', "red")
    say(inspection, '"blue-secret-value"', "blue")
    say(inspection, '"anything"')
    first, second, third, fourth = inspection.after(0)
    assert "red" in str(first.payload)
    assert second.payload is not None
    assert "red" not in second.payload
    assert (third.payload, third.is_cut, fourth.payload) == (None, True, None)


def test_numbers_of_several_nodes_are_in_the_order_of_time_wherever_a_part_was_opened_later() -> None:
    now = 100.0
    early = Numbers(Place(0, 2), lambda: now)
    now += 0.75  # the request to the other node took so long
    late = Numbers(Place(1, 2, begun_s_ago=0.75), lambda: now)
    taken = []
    for turn in range(6):
        taken.append((early, late)[turn % 2].next())
        now += 0.001
    assert taken == sorted(set(taken))
    bound = late.bound()
    assert bound is not None
    assert late.next() >= bound > taken[-1]
    skewed = Numbers(Place(1, 2, begun_s_ago=-3600.0), lambda: now)
    assert skewed.next() > 0
    assert Numbers(Place(1, 2, begun_s_ago=3600.0), lambda: now).next() < 2 * 3_000_000
    alone = Numbers()
    assert ([alone.next() for _ in range(3)], alone.bound()) == ([1, 2, 3], None)


def test_masking_is_charged_to_the_tenant() -> None:
    charged = list[str]()
    inspections = Inspections(80_000, charge=lambda tenant, seconds: charged.append(tenant))
    inspections.open(about("1", "acme"), Mask()).word("a word to look at")
    assert charged == ["acme"]
