"""What is known of a backend's era, and for how long it is asked."""

import pytest

from app.backends.connections.era import Era, probe_s


@pytest.mark.parametrize(("initialize_s", "expected"), [(5, 3.0), (30, 3.0), (300, 30.0)])
def test_a_backend_that_may_start_slowly_has_longer_to_answer_discover(initialize_s: float, expected: float) -> None:
    assert probe_s(initialize_s) == pytest.approx(expected)


def test_another_version_is_asked_again() -> None:
    era = Era()
    era.of(1)
    assert era.is_sessionless is None
    era.learn(is_sessionless=True)
    era.of(1)
    assert era.is_sessionless is True
    era.of(2)
    assert era.is_sessionless is None
