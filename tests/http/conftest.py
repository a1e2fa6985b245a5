"""The REST API as the tests of its resources have it, on SQLite alone: these tests are about HTTP."""

import pytest

from tests.admin.conftest import rig, untouched, url, url_for_many

__all__ = ["dialect", "rig", "untouched", "url", "url_for_many"]


@pytest.fixture(scope="module")
def dialect() -> str:
    return "sqlite"
