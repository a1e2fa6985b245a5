"""Pools of real processes."""

from tests.backends.rig import clock, make_pool
from tests.processes.rig import metrics, running

__all__ = ["clock", "make_pool", "metrics", "running"]
