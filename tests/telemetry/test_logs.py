"""Logs: one JSON object a line, whatever is in it; ids from the context; no credentials."""

import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from app.telemetry import logs


@pytest.fixture
def stream() -> Iterator[io.BytesIO]:
    """What is logged; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    output = io.BytesIO()
    logs.configure("info", output)
    yield output
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.BytesIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_with_time_level_logger_and_message(stream):
    logging.getLogger("app.x").info("%d sessions", 3)
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "logger": "app.x", "message": "3 sessions"}


def test_where_several_nodes_write_each_line_says_which(stream):
    logs.configure("info", stream, of_every_line={"node": "2"})
    logging.getLogger("app").info("ready")
    assert lines(stream)[0]["node"] == "2"


@pytest.mark.parametrize("text", ["a\nb", '{"level":"error"}\r\n', "\x1b[31mred", "\u2028", "\x00", "\udc80", "\x85"])
def test_no_text_can_forge_a_line(stream, text):
    logging.getLogger("app").warning("got %s", text, extra={"name_given": text})
    assert stream.getvalue().count(b"\n") == 1
    assert stream.getvalue().isascii()
    (line,) = lines(stream)
    assert line["message"] == f"got {text}"
    assert line["name_given"] == text


def test_an_exception_is_one_member(stream):
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("app").exception("failed")
    (line,) = lines(stream)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: first\nsecond")


def test_a_line_says_what_is_known_of_its_request_until_that_is_over_and_extra_wins(stream):
    context = logs.LogContext(lambda: {"request": "r1", "tenant": "acme"})
    token = logs.current.set(context)
    try:
        logging.getLogger("app").info("one")
        logging.getLogger("app").info("two", extra={"tenant": "zenith", "session": "s1"})
        context.end()
        logging.getLogger("app").info("three")
    finally:
        logs.current.reset(token)
    one, two, three = lines(stream)
    assert (one["request"], one["tenant"]) == ("r1", "acme")
    assert (two["request"], two["tenant"], two["session"]) == ("r1", "zenith", "s1")
    assert not {"request", "tenant"} & set(three)


@contextmanager
def in_one_second() -> Iterator[None]:
    """Whatever happens within it, also on a machine that stands still meanwhile. Nothing may be awaited there."""
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        yield


async def test_of_lines_by_the_thousand_some_are_logged_and_the_rest_counted(stream, monkeypatch):
    monkeypatch.setattr(logs.Thinned, "PER_S", 3)
    thinned = logs.Thinned(logging.getLogger("app"))
    with in_one_second():
        for number in range(10):
            thinned.info("a", "refused", {"number": number})
        thinned.info("b", "another kind", {})
    with anyio.fail_after(30):
        while not any("more" in line for line in lines(stream)):
            await anyio.sleep(0.01)
    *first, other, told = lines(stream)
    assert [line["number"] for line in first] == [0, 1, 2]
    assert other["message"] == "another kind"
    assert (told["message"], told["more"]) == ("refused (and 7 more within a second)", 7)


async def test_a_field_may_be_called_like_a_member_of_every_record(stream):
    logs.Thinned(logging.getLogger("app")).info("a", "refused", {"name": "x", "process": 1, "message": "m"})
    (line,) = lines(stream)
    assert (line["message"], line["name_"], line["process_"], line["message_"]) == ("refused", "x", 1, "m")


async def test_kinds_that_strangers_make_up_are_bounded(stream, monkeypatch):
    monkeypatch.setattr(logs.Thinned, "MAX_KINDS", 5)
    monkeypatch.setattr(logs.Thinned, "PER_S", 1)
    thinned = logs.Thinned(logging.getLogger("app"))
    with in_one_second():
        for number in range(1000):
            thinned.info(number, "refused", {})
    assert len(lines(stream)) <= 6


def test_credentials_do_not_get_out(stream):
    key = "tlk_abcdefgh_" + "a" * 49
    logging.getLogger("app").info(
        "key %s", key, extra={"header": f"Bearer {key}", "other": "Authorization: bearer x.y"}
    )
    text = stream.getvalue().decode()
    assert "aaaa" not in text
    assert "x.y" not in text
    assert "tlk_abcdefgh_***" in text
    assert len(lines(stream)) == 1


def test_chatty_libraries_are_quiet_even_at_debug(stream):
    logs.configure("debug", stream)
    logging.getLogger("aiosqlite").debug("executing")
    logging.getLogger("sse_starlette.sse").debug("chunk: %s", b"event: message")
    logging.getLogger("httpcore2.http11").debug("receive_response_headers.complete")
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("uvicorn.error").info("Started server process")
    assert stream.getvalue() == b""
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    assert stream.getvalue() == b""
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    assert len(lines(stream)) == 1


def test_the_level_holds_and_setting_up_twice_logs_once(stream):
    logs.configure("warning", stream)
    logs.configure("warning", stream)
    logging.getLogger("app").info("no")
    logging.getLogger("app").warning("yes")
    assert [line["message"] for line in lines(stream)] == ["yes"]


def test_a_line_that_would_come_with_every_request_comes_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 0.1, 9.9, 10.0, 10.1))
    seldom = logs.Seldom(lambda: next(times))
    for _ in range(5):
        seldom.error(logging.getLogger("test"), "the database is away")
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the database is away ({count} more since the last such line)" for count in (0, 2)]


@pytest.mark.parametrize(
    "header",
    [
        "X-API-Key: X1y2",
        "'x-api-key': 'X1y2'",
        '\\"X-Api-Key\\": \\"X1y2',
        "Bearer\tX1y2",
        "Bearer  X1y2",
        "BEARER X1y2",
        "bEarer X1y2",
        "xBearer X1y2",
        "bearer\u00a0\r\nX1y2",
    ],
)
def test_no_spelling_of_the_scheme_lets_a_credential_out(stream, header):
    logging.getLogger("app").info("got %s", header, extra={"header": header})
    assert b"X1y2" not in stream.getvalue()
    assert lines(stream)[0]["message"].endswith("***")


def test_whoever_logs_does_not_hear_that_the_disk_is_full(capsys):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with open("/dev/full", "wb", buffering=0) as full:
            logs.configure("info", full)
            for _ in range(3):
                logging.getLogger("app").info("lost")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert capsys.readouterr().err == ""
