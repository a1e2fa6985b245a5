"""A bridge that is open."""

import pytest

from tests.protocol.eras.talk import Talk


@pytest.fixture
def talk() -> Talk:
    return Talk().opened()
