"""What the parts are opened with."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from app.limits.loop_shares import LoopShares
from app.node.certificate_files import CertificateFiles
from app.sessions.loop_pause import StandstillDetector
from app.sessions.open_sessions import OpenSessions
from app.sessions.parking import Parking
from app.settings.settings import Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Opening:
    """A node that is being opened. `stack` closes in reverse order what was opened."""

    stack: AsyncExitStack
    settings: Settings
    metrics: Metrics
    node_id: str
    sessions: OpenSessions
    standstill: StandstillDetector
    parking: Parking
    shares: LoopShares
    tracer: Tracer | None = None
    certificate: CertificateFiles | None = None

    @classmethod
    def of_node(
        cls,
        stack: AsyncExitStack,
        settings: Settings,
        metrics: Metrics,
        node_id: str,
        tracer: Tracer | None = None,
        certificate: CertificateFiles | None = None,
    ) -> Self:
        """With no sessions yet."""
        standstill = StandstillDetector()
        parking = Parking(standstill, metrics)
        return cls(
            stack,
            settings,
            metrics,
            node_id,
            OpenSessions(),
            standstill,
            parking,
            LoopShares(metrics),
            tracer,
            certificate,
        )
