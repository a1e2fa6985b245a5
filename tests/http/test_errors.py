"""The one table from errors to answers (design: "Errors of our own")."""

import json
import re

import pytest

from app import errors
from app.cluster.peers.client import PeerLost
from app.errors import FIXED, LimitReached
from app.http.errors import HttpRefusal, http_status, phrase, retry_after, rpc_code, rpc_error
from app.settings.settings import Settings


def _every_error(kind: type[errors.GatewayError] = errors.GatewayError) -> list[type[errors.GatewayError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _every_error(child))]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ParseError(), 400, -32700),
        (errors.InvalidMessage(), 400, -32600),
        (errors.SessionNotFound(), 404, -32600),
        (errors.ResponseTooLarge(), 200, -32010),
        (errors.BackendBusy(), 503, -32011),
        (errors.BackendExited(), 200, -32012),
        (errors.BackendExited(started=False), 502, -32012),
        (errors.BackendUnavailable(), 503, -32013),
        (errors.ShuttingDown(), 503, -32014),
        (errors.BackendTimeout(), 200, -32015),
        (errors.QuotaExceeded("sessions"), 429, -32016),
        (HttpRefusal(415, "unsupported_media_type", "no"), 415, -32600),
    ],
)
def test_each_error_has_its_status_and_code(error: errors.GatewayError, status: int, code: int) -> None:
    assert (http_status(error), rpc_code(error)) == (status, code)


def test_a_status_has_one_name_whatever_python_calls_it() -> None:
    named = [phrase(status) for status in (404, 413, 414, 422)]
    assert named == ["Not Found", "Content Too Large", "URI Too Long", "Unprocessable Content"]


def test_what_answers_503_or_429_says_when_to_come_again() -> None:
    for kind in _every_error():
        try:
            error = kind("x")
        except TypeError:
            continue
        if http_status(error) in (429, 503):
            assert retry_after(error), kind


def test_the_backends_last_words_are_for_administrators_only() -> None:
    error = errors.BackendExited("gone", stderr=["secret path"], hint="look at it")
    assert json.loads(rpc_error(error, b'"7"'))["error"]["data"] == {"reason": "backend_exited", "hint": "look at it"}
    with_stderr = json.loads(rpc_error(error, b'"7"', with_stderr=True))
    assert with_stderr["id"] == "7"
    assert with_stderr["error"]["data"]["stderr"] == ["secret path"]


def test_a_limit_is_named_with_its_number_its_use_and_who_can_raise_it() -> None:
    error = errors.session_quota("sessions", "acme", 3, 4)
    data = json.loads(rpc_error(error, b"1"))["error"]["data"]
    assert data["limit"] == {
        "name": "sessions", "of": "tenant", "allowed": 3, "used": 4,
        "raised_by": "a platform administrator: PATCH /api/v1/tenants/acme, limits.sessions",
    }  # fmt: skip
    assert data["hint"] == f"Who can raise `sessions`: {data['limit']['raised_by']}."


def test_of_a_limit_that_nobody_can_raise_the_hint_says_so() -> None:
    error = errors.RateLimited("rest", reached=LimitReached("rest", "principal", 50, None, FIXED))
    assert error.hint == "Nobody can raise `rest`: it is part of the program."


@pytest.mark.parametrize(
    ("reason", "helps", "may_have_run"),
    [
        ("state_invalid", "with the same method, parameters and credential", False),
        ("state_spent", "check first whether this one had an effect", True),
        ("state_lost", "Check first whether the call had an effect", True),
    ],
)
def test_nobody_is_told_to_send_a_call_again_that_may_have_run(reason: str, helps: str, may_have_run: bool) -> None:
    hint = errors.StateRefused(reason).hint or ""
    assert helps in hint
    assert ("had an effect" in hint) is may_have_run


@pytest.mark.parametrize("kind", [kind for kind in _every_error() if kind.hint])
def test_the_settings_that_a_hint_names_exist(kind: type[errors.GatewayError]) -> None:
    named = re.findall(r"TRUNKLINE_([A-Z_]+)", kind.hint or "")
    assert [name for name in named if name.lower() not in Settings.__dataclass_fields__] == []
    if kind is errors.StorageReadOnly:
        assert named == ["DATABASE_URL"]


def test_a_node_that_does_not_answer_may_have_a_process_or_an_inspection_too() -> None:
    error = errors.nodes_unavailable(["node-b"])
    assert str(error) == "no answer from node-b, which may have it"
    assert error.hint == "Send the request again in a moment."


def test_reasons_are_words_for_machines() -> None:
    assert all(kind.reason.replace("_", "").isalpha() for kind in _every_error() if kind is not HttpRefusal)


def test_an_error_says_the_first_sentence_of_its_description_and_nothing_of_the_code():
    message = str(PeerLost())
    assert message == "The connection broke after the request was sent: its outcome is unknown"


def test_nobody_is_told_to_come_back_before_it_makes_sense() -> None:
    """At 503 times are spread: never below what the error has asked for."""
    error = errors.BackendUnavailable().again_after(8.0)
    assert all(8.0 <= (retry_after(error) or 0.0) <= 10.0 for _ in range(200))
