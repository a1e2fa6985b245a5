"""What each group of parts is opened with."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from app.config.settings import Settings
from app.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Opening:
    """A node that is being opened. `stack` closes in reverse what was opened."""

    stack: AsyncExitStack
    settings: Settings
    metrics: Metrics
    node_id: str
    version: str
