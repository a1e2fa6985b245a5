"""The settings for traces: what is taken, what is refused in one line, and that a secret is in none."""

import sys

import pytest

from app.settings.tracing import collector, headers, is_installed, ratio


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://Tempo.example.com/", "https://tempo.example.com/v1/traces"),
        ("https://a.example.com/otlp", "https://a.example.com/otlp/v1/traces"),
        ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
    ],
)
def test_the_path_is_that_of_the_convention(text: str, url: str) -> None:
    assert collector(text) == url


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:4318", "grpc://a:4317", "http://user:secret@a", "http://a?secret=1", "http://a:99999", "http://"],
)
def test_what_is_no_address_of_a_collector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="like http://127") as refused:
        collector(text)
    assert "secret" not in str(refused.value)


def test_without_the_extra_an_address_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed()
    for name in [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert not is_installed()
    with pytest.raises(ValueError, match=r"pip install 'trunkline\[otel\]'"):
        collector("http://127.0.0.1:4318")


def test_headers_are_decoded() -> None:
    assert headers(" Authorization = Bearer%20a%2Cb , x-scope=1,") == (
        ("authorization", "Bearer a,b"),
        ("x-scope", "1"),
    )
    assert headers("") == ()


@pytest.mark.parametrize("text", ["secret", "a=1,secret", "a b=secret", "a=secret%0d", "é=secret"])
def test_headers_of_another_form_are_refused_without_their_values(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=VALUE") as refused:
        headers(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("0.01", 0.01), ("1", 1), ("1e-3", 0.001)])
def test_a_ratio(text: str, value: float) -> None:
    assert ratio(text) == value


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "5%", "all"])
def test_what_is_no_ratio_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="numbers from 0"):
        ratio(text)
