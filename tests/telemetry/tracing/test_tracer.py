"""Which traces are recorded, and what their spans say."""

import os

import pytest

from app.telemetry.tracing.context import Own, Parent, TraceContext
from app.telemetry.tracing.spans import Span
from app.telemetry.tracing.tracer import Tracer

TRACE, PARENT, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7", b"1" * 16


@pytest.fixture
def spans() -> list[Span]:
    return []


@pytest.fixture
def tracer(spans: list[Span]) -> Tracer:
    return Tracer(0.5, spans.append)


def context(tracer: Tracer, state: bytes = b"") -> TraceContext:
    return tracer.context(Parent(TRACE, PARENT, b"01"), Own(b"r1", TRACE, SPAN), state)


@pytest.mark.parametrize(
    ("sample", "least", "most"), [(0, 0, 0), (1e-9, 0, 1), (0.1, 800, 1200), (0.5, 4700, 5300), (1, 10_000, 10_000)]
)
def test_as_many_traces_begin_as_asked_for(sample: float, least: int, most: int) -> None:
    tracer = Tracer(sample, lambda span: None)
    begun = sum(tracer.begins(os.urandom(16).hex().encode()) for _ in range(10_000))
    assert least <= begun <= most


def test_the_same_traces_as_by_other_samplers_begin() -> None:
    tracer = Tracer(0.25, lambda span: None)
    assert tracer.begins(b"f" * 16 + b"3fffffffffffffff")
    assert not tracer.begins(b"0" * 16 + b"4000000000000000")


def test_a_request_and_its_call(tracer: Tracer, spans: list[Span]) -> None:
    about = context(tracer, b"v=1")
    tracer.call_over(about, (b"2" * 16, SPAN), ("tools/call", "add"), 0.5, {"a": 1}, "")
    tracer.request_over(about, "tools/call", "add", {}, "-32601")
    call, request = spans
    assert (call.name, call.kind, call.span, call.parent) == ("tools/call add", "client", b"2" * 16, SPAN)
    assert (request.name, request.kind, request.span, request.parent) == ("tools/call add", "server", SPAN, PARENT)
    assert call.attributes == {
        "a": 1,
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "trunkline.request.id": "r1",
    }
    assert request.attributes["error.type"] == request.attributes["rpc.response.status_code"] == "-32601"
    assert request.error
    assert not call.error
    assert call.ended_ns - call.began_ns == pytest.approx(5e8, rel=0.1)
    assert request.began_ns == about.began_ns <= request.ended_ns
    assert {each.trace for each in spans} == {TRACE}
    assert {each.state for each in spans} == {b"v=1"}


def test_an_error_of_the_gateway_has_no_code(tracer: Tracer, spans: list[Span]) -> None:
    tracer.opening_over(context(tracer), b"4" * 16, 0.1, {}, "backend_busy")
    assert spans[0].attributes["error.type"] == "backend_busy"
    assert "rpc.response.status_code" not in spans[0].attributes
    assert spans[0].parent == SPAN


def test_what_is_done_for_a_request_belongs_to_the_span_that_it_is_done_in(tracer: Tracer, spans: list[Span]) -> None:
    about = context(tracer)
    tracer.part_over(about, "one", (1.5, 2.5), {})
    with about.inside(b"4" * 16):
        tracer.part_over(about, "two", (2.5, 3.5), {}, "backend_busy")
    tracer.part_over(about, "three", (3.5, 3.5), {})
    assert [(each.name, each.kind, each.parent) for each in spans] == [
        ("one", "internal", SPAN), ("two", "internal", b"4" * 16), ("three", "internal", SPAN),
    ]  # fmt: skip
    assert [(each.began_ns, each.ended_ns) for each in spans][:2] == [
        (15 * 10**8, 25 * 10**8),
        (25 * 10**8, 35 * 10**8),
    ]
    assert [each.error for each in spans] == ["", "backend_busy", ""]
    assert len({each.span for each in spans}) == 3


def test_a_message_of_a_batch_is_a_child_of_its_request(tracer: Tracer, spans: list[Span]) -> None:
    tracer.request_over(context(tracer), "tools/call", "add", {}, part=b"5" * 16)
    (part,) = spans
    assert (part.kind, part.span, part.parent, part.is_parent_ours) == ("server", b"5" * 16, SPAN, True)


def test_a_hop_is_a_child_of_the_client_beside_the_request(tracer: Tracer, spans: list[Span]) -> None:
    tracer.hop_over(context(tracer), b"3" * 16, 0.1, {}, "")
    assert (spans[0].name, spans[0].kind, spans[0].span, spans[0].parent) == ("forward", "client", b"3" * 16, PARENT)


def test_what_clients_choose_is_bounded(tracer: Tracer, spans: list[Span]) -> None:
    tracer.request_over(context(tracer), "m" * 200, "n" * 200, {}, "e" * 200)
    assert spans[0].name == "m" * 128 + " " + "n" * 128
    assert max(len(str(each)) for each in spans[0].attributes.values()) == 128
