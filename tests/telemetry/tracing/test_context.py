"""What of a client's context is taken, and what is passed on."""

import json
from typing import Any

import msgspec
import pytest

from app.protocol.jsonrpc import Params
from app.telemetry.tracing.context import Own, Parent, TraceContext, may_have_parent, new_span, parse_traceparent

TRACE, PARENT, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7", b"1" * 16
OWN = Own(b"request", b"f" * 32, SPAN)


def params_of(**members: Any) -> Params:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members.items()}


def meta_in(params: Params | None) -> Any:
    assert params is not None
    return json.loads(bytes(params["_meta"]))


def context(flags: bytes = b"01", **more: Any) -> TraceContext:
    return TraceContext(Parent(TRACE, PARENT, flags), OWN, 5, **more)


@pytest.mark.parametrize(("flags", "is_sampled"), [(b"00", False), (b"01", True), (b"02", False), (b"ff", True)])
def test_the_last_bit_of_the_flags_says_whether_the_parent_is_recorded(flags: bytes, is_sampled: bool) -> None:
    parent = parse_traceparent(b"00-%b-%b-%b" % (TRACE, PARENT, flags))
    assert parent == (TRACE, PARENT, flags)
    assert parent.is_sampled is is_sampled
    assert context(flags).is_recorded is is_sampled


def test_a_trace_without_a_parent_begins_with_the_request_and_is_recorded() -> None:
    root = TraceContext(None, OWN, 5)
    assert (root.trace, root.parent, root.is_recorded) == (b"f" * 32, b"", True)
    assert root.traceparent() == b"00-%b-%b-01" % (b"f" * 32, SPAN)


def test_the_backend_gets_a_child_and_everything_else_of_meta_stays() -> None:
    given = params_of(name="x", _meta={"progressToken": 3, "traceparent": "00-old", "tracestate": "old=1"})
    told = context(state=b"a=1", baggage=b"user=7").passed_on(given, b"2" * 16)
    assert told is not None
    assert told["name"] == given["name"]
    assert meta_in(told) == {
        "progressToken": 3,
        "traceparent": f"00-{TRACE.decode()}-{'2' * 16}-01",
        "tracestate": "a=1",
        "baggage": "user=7",
    }
    assert meta_in(given)["traceparent"] == "00-old"


def test_baggage_of_the_message_comes_before_that_of_the_headers() -> None:
    told = context(baggage=b"user=7").passed_on(params_of(_meta={"baggage": "é"}), b"2" * 16)
    assert meta_in(told)["baggage"] == "é"


def test_the_state_of_another_trace_is_not_passed_on() -> None:
    assert "tracestate" not in meta_in(context().passed_on(params_of(_meta={"tracestate": "old=1"}), b"2" * 16))


@pytest.mark.parametrize("params", [None, {}, params_of(_meta={})])
def test_a_context_finds_its_place_without_any_meta(params: Params | None) -> None:
    assert set(meta_in(context().passed_on(params, b"2" * 16))) == {"traceparent"}


@pytest.mark.parametrize("meta", [7, [], "x", None])
def test_a_meta_that_is_no_object_is_left_to_the_backend(meta: Any) -> None:
    given = params_of(_meta=meta)
    assert context().passed_on(given, b"2" * 16) is given


def test_where_nothing_is_recorded_the_client_itself_is_the_parent() -> None:
    told = context(b"00").passed_on(None, b"")
    assert meta_in(told)["traceparent"] == f"00-{TRACE.decode()}-{PARENT.decode()}-00"
    own = params_of(_meta={"traceparent": "00-its-own"})
    assert context(b"00").passed_on(own, b"") is own


@pytest.mark.parametrize(
    ("state", "kept"), [(b"a=1", b"a=1"), (b"x" * 513, b""), (b"a\r\nb", b""), (b"\xe9", b""), (b"x" * 512, b"x" * 512)]
)
def test_a_state_that_could_not_be_sent_on_is_dropped(state: bytes, kept: bytes) -> None:
    assert context(state=state).state == kept


def test_a_message_continues_its_own_trace_and_links_that_of_the_headers() -> None:
    meta = params_of(traceparent=f"00-{'a' * 32}-{'b' * 16}-01", tracestate="s=1")
    found = context(baggage=b"user=7").continued(meta)
    assert found is not None
    assert (found.trace, found.parent, found.span, found.state) == (b"a" * 32, b"b" * 16, SPAN, b"s=1")
    assert (found.linked, found.baggage, found.began_ns) == ((TRACE, PARENT), b"user=7", 5)
    assert TraceContext(None, OWN, 5).continued(meta).linked is None  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "00", "é" * 55, 7, None, f"00-{'0' * 32}-{'b' * 16}-01"])
def test_a_message_with_a_malformed_context_continues_nothing(text: Any) -> None:
    assert context().continued(params_of(traceparent=text)) is None


def test_meta_is_read_only_where_it_may_have_a_context() -> None:
    assert may_have_parent(None) is may_have_parent({}) is may_have_parent(params_of(_meta={"a": 1})) is None
    assert may_have_parent(params_of(_meta={"traceparent": 1})) == {"traceparent": msgspec.Raw(b"1")}


def test_the_first_error_is_kept_and_spans_have_ids_of_their_own() -> None:
    one = context()
    one.failed("first")
    one.failed("second")
    assert one.error == "first"
    assert len({new_span() for _ in range(1000)}) == 1000
    assert len(new_span()) == 16
