"""Real processes."""

from tests.processes.rig import metrics, running

__all__ = ["metrics", "running"]
