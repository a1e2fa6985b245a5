"""Pools of real processes."""

from tests.backends.rig import make_pool
from tests.processes.rig import metrics, running

__all__ = ["make_pool", "metrics", "running"]
