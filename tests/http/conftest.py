"""The REST API, as the tests of its resources have it."""

from tests.admin.conftest import dialect, rig, untouched, url, url_for_many

__all__ = ["dialect", "rig", "untouched", "url", "url_for_many"]
