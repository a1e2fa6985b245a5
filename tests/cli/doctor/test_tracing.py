"""What `trunkline doctor` says of traces."""

import socket
import sys
from collections.abc import Iterator

import pytest

from app.cli.doctor.findings import State
from app.cli.doctor.tracing import tracing
from tests.collector import Collector, collecting

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers does so on a busy machine too."""
    monkeypatch.setattr("app.cli.doctor.tracing.ANSWER_S", 30.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def test_off_with_the_extra_is_fine() -> None:
    found = tracing(None, ())
    assert (found.name, found.state) == ("traces", State.OK)
    assert "TRUNKLINE_OTLP_ENDPOINT" in found.detail


def test_off_without_the_extra_is_fine_too_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    found = tracing(None, ())
    assert found.state is State.OPTIONAL
    assert "trunkline[otel]" in found.advice


def test_a_collector_that_answers_is_fine_and_has_got_the_headers_and_no_span(collector: Collector) -> None:
    found = tracing(collector.url + "/v1/traces", [("x-key", "k")])
    assert found.state is State.OK, found
    (request,) = collector.requests
    assert (request["x-key"], request["path"], collector.spans) == ("k", "/v1/traces", [])


@pytest.mark.parametrize(("status", "advice"), [(401, "OTLP_HEADERS"), (404, "port 4318"), (503, "port 4318")])
def test_one_that_refuses_is_named_with_its_answer(collector: Collector, status: int, advice: str) -> None:
    collector.status = status
    found = tracing(collector.url, ())
    assert found.state is State.OPTIONAL
    assert str(status) in found.detail
    assert advice in found.advice


def test_one_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = tracing(f"http://127.0.0.1:{port}/v1/traces", ())
    assert found.state is State.OPTIONAL
    assert "refused" in found.detail
    assert "OTLP_ENDPOINT" in found.advice


def test_one_that_hangs_is_not_waited_for_long(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.doctor.tracing.ANSWER_S", 0.2)
    collector.holds.clear()
    found = tracing(collector.url, ())
    assert found.state is State.OPTIONAL
    assert "timed out" in found.detail
