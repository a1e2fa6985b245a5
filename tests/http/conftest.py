"""One API for each test."""

from tests.admin.conftest import rig

__all__ = ["rig"]
