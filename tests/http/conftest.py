"""The REST API, as the tests of its resources have it."""

from tests.admin.conftest import rig, untouched

__all__ = ["rig", "untouched"]
