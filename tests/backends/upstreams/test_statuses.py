"""What a status and a type mean."""

import pytest

from app.backends.upstreams._statuses import MAX_RETRY_AFTER_S, Answer, Body, failure
from app.errors import UNKNOWN, BackendBusy, InvalidResponse, UpstreamFailed, UpstreamRefused


def answer(status, kind="application/json", **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Answer(status, [(b"Content-Type", kind.encode()), *pairs])


@pytest.mark.parametrize(
    ("kind", "headers", "body"),
    [("application/json; charset=utf-8", {}, Body.JSON), ("TEXT/event-stream;x=y", {}, Body.EVENTS),
     ("text/html", {}, Body.NOTHING), ("", {}, Body.NOTHING),
     ("application/json", {"content_encoding": "gzip"}, Body.NOTHING),
     ("application/json", {"content_encoding": "identity"}, Body.JSON)],
)  # fmt: skip
def test_the_type_says_how_to_read(kind, headers, body):
    assert answer(200, kind, **headers).body is body


@pytest.mark.parametrize(
    ("status", "kind", "error", "words"),
    [(401, "", UpstreamRefused, "does not accept the `headers`"), (403, "", UpstreamRefused, "HTTP 403"),
     (302, "", InvalidResponse, "names http://169.254.169.254/latest: "),
     (200, "text/html", InvalidResponse, "text/html"),
     (200, "a\x7fb", InvalidResponse, "no type"), (404, "", UpstreamFailed, "HTTP 404"),
     (500, "", UpstreamFailed, "HTTP 500"), (429, "", BackendBusy, "no more requests")],
)  # fmt: skip
def test_each_failure_says_what_it_is(status, kind, error, words):
    found = failure(
        answer(status, kind, location="http://u:pass@169.254.169.254/latest?token=s3cret#s3cret"), "far.example"
    )
    assert type(found) is error
    assert words in str(found)
    assert "far.example" in str(found)
    assert "pass" not in str(found) + str(found.hint)
    assert "s3cret" not in str(found) + str(found.hint)


def test_what_may_have_been_carried_out_is_said_to_be_unknown():
    assert failure(answer(502), "h").outcome == UNKNOWN
    assert failure(answer(404), "h").outcome is None


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("0", 1.0), ("soon", 1.0), ("9" * 40, MAX_RETRY_AFTER_S)])
def test_a_busy_server_says_when_to_come_again(text, seconds):
    assert failure(answer(429, retry_after=text), "h").retry_after_s == seconds
