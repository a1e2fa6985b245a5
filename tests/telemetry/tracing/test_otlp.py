"""Spans as a collector reads them."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.telemetry.tracing.otlp import Encoder
from app.telemetry.tracing.spans import Span
from tests.collector import Collector

TRACE, OTHER = "4bf92f3577b34da6a3ce929d0e0e4736", "a" * 32


def span(**changed: object) -> Span:
    fields = {
        "name": "tools/call add", "kind": "server", "trace": TRACE.encode(), "span": b"1" * 16, "parent": b"",
        "state": b"", "flags": b"01", "began_ns": 5, "ended_ns": 9, "attributes": {}, "error": "", **changed,
    }  # fmt: skip
    return Span(**fields)  # type: ignore[arg-type]


def test_everything_of_a_span_arrives() -> None:
    given = span(
        parent=b"2" * 16,
        state=b"v=1",
        attributes={"a": "é", "n": 3},
        error="-32601",
        linked=(OTHER.encode(), b"3" * 16),
    )
    collector = Collector()
    assert collector.take("/", {}, Encoder("1.2", "node-1")([given, span(kind="internal")])) == 200
    first, second = collector.spans
    assert (first.name, first.kind, first.trace, first.id, first.parent) == (
        "tools/call add", "server", TRACE, "1" * 16, "2" * 16,
    )  # fmt: skip
    assert (first.began, first.ended, first.state, first.failed, first.node) == (5, 9, "v=1", True, "node-1")
    assert (first.about, first.links) == ({"a": "é", "n": 3}, [(OTHER, "3" * 16)])
    assert (second.kind, second.parent, second.failed, second.links) == ("internal", "", False, [])


@pytest.mark.parametrize(
    "state", [b"!!, =,==", b"a=1,a=2", b"x" * 512, b",".join(b"a%d=1" % n for n in range(33)), b"A=1", b" " * 512]
)
def test_a_malformed_state_costs_only_itself_and_no_line_of_the_log(
    state: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    collector.take("/", {}, Encoder("1.2", "node-1")([span(state=state, parent=b"2" * 16), span()]))
    assert [each.state for each in collector.spans] == ["", ""]
    assert not caplog.records


def test_a_state_keeps_its_members_in_their_order() -> None:
    collector = Collector()
    collector.take("/", {}, Encoder("1.2", "node-1")([span(state=b"b=1 2 ,,\ta@x=~,c=*")]))
    assert [each.state for each in collector.spans] == ["b=1 2,a@x=~,c=*"]


def test_every_request_names_the_node() -> None:
    message = ExportTraceServiceRequest()
    message.ParseFromString(Encoder("1.2", "node-1")([span()]))
    (resource,) = message.resource_spans
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about == {"service.name": "trunkline", "service.version": "1.2", "service.instance.id": "node-1"}
    assert resource.scope_spans[0].scope.name == "trunkline"
