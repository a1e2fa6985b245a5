"""What is shared of renewals, with whom, for how long, and how much of it is kept."""

import anyio
import pytest
from starlette.responses import HTMLResponse, Response

from app.console.renewals import GOOD_S, MAX_BYTES, MAX_KEPT, Renewals


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Page:
    """Counts how often it is made."""

    def __init__(self, text: str = "part", status: int = 200) -> None:
        self.text, self.status, self.made = text, status, 0

    async def __call__(self) -> Response:
        self.made += 1
        await anyio.lowlevel.checkpoint()
        return HTMLResponse(self.text, self.status)


async def test_ten_who_ask_at_once_cause_it_once():
    renewals, page, answers = Renewals(), Page(), list[Response]()

    async def ask() -> None:
        answers.append(await renewals.get(("a",), page, ""))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(ask)
    assert page.made == 1
    assert [bytes(each.body) for each in answers] == [b"part"] * 10
    assert len({id(each) for each in answers}) == 10  # each may be changed on its way


async def test_it_is_made_again_after_two_seconds_and_for_other_rights():
    clock, page = Clock(), Page()
    renewals = Renewals(clock)
    await renewals.get(("a", "reader"), page, "")
    await renewals.get(("a", "administrator"), page, "")
    assert page.made == 2
    clock.now += GOOD_S - 0.01
    await renewals.get(("a", "reader"), page, "")
    assert page.made == 2
    clock.now += 0.01
    await renewals.get(("a", "reader"), page, "")
    assert page.made == 3


async def test_a_browser_that_has_it_already_is_told_so():
    clock, page = Clock(), Page()
    renewals = Renewals(clock)
    first = await renewals.get(("a",), page, "")
    clock.now += GOOD_S
    again = await renewals.get(("a",), page, first.headers["etag"])
    assert (again.status_code, again.body, again.headers["cache-control"]) == (304, b"", "no-store")
    clock.now += GOOD_S
    page.text = "other"
    changed = await renewals.get(("a",), page, first.headers["etag"])
    assert (changed.status_code, bytes(changed.body)) == (200, b"other")


async def test_refusals_and_failures_are_not_kept():
    renewals, page = Renewals(), Page(status=404)
    for count in (1, 2):
        assert (await renewals.get(("a",), page, "")).status_code == 404
        assert page.made == count

    async def fail() -> Response:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await renewals.get(("b",), fail, "")
    assert len(renewals) == 0


async def test_whoever_waits_for_one_that_gave_up_makes_it_himself():
    renewals, page, stuck = Renewals(), Page(), anyio.Event()

    async def never() -> Response:
        stuck.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def give_up() -> None:
            with scope:
                await renewals.get(("a",), never, "")

        async def wait() -> None:
            assert bytes((await renewals.get(("a",), page, "")).body) == b"part"

        tasks.start_soon(give_up)
        await stuck.wait()
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    assert page.made == 1


async def test_what_is_kept_is_limited_in_entries_and_bytes():
    renewals = Renewals()
    for number in range(MAX_KEPT + 10):
        await renewals.get((number,), Page(), "")
    assert len(renewals) == MAX_KEPT
    renewals, large = Renewals(), "x" * (MAX_BYTES // 4)
    for number in range(20):
        await renewals.get((number,), Page(large), "")
        assert len(renewals) <= 4
    page = Page(large)
    await renewals.get((19,), page, "")  # the newest is there
    assert page.made == 0
