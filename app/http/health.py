"""/livez, /readyz and /metrics: for load balancers, orchestrators and Prometheus. The first two answer to any Host,
/metrics to an address, the host of NODE_URL, or an allowed one."""

import ipaddress
from dataclasses import dataclass
from typing import Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from app.auth.policy import has_scope
from app.domain import Scope
from app.errors import Forbidden
from app.http.dependencies import authenticate

OK = "ok"
_FORWARDING = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

router = APIRouter(include_in_schema=False)


class Readiness(Protocol):
    """What knows whether this node can serve."""

    async def check(self) -> dict[str, str]:
        """Each part by name: "ok", or why it is not. Must answer within a second or so."""

    def degraded(self) -> dict[str, str]:
        """What does not work, and does not keep new work away: by part, in words, with what to do."""


@dataclass(frozen=True, slots=True)
class Health:
    """What these routes need; `main.py` puts it on `app.state.health`."""

    readiness: Readiness
    registry: CollectorRegistry


@router.get("/livez")
async def livez() -> JSONResponse:
    """The process runs its event loop. Asks nobody: an orchestrator that restarts us cannot mend a database."""
    return ALIVE


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """New work may come here."""
    return await readiness(request.app.state.health)


async def readiness(health: Health) -> JSONResponse:
    """The answer of /readyz: 503 where a part keeps this node from serving."""
    parts = await health.readiness.check()
    if all(state == OK for state in parts.values()):
        return _uncached({"status": "ready", "parts": parts, "degraded": health.readiness.degraded()})
    return _uncached({"status": "not ready", "parts": parts}, 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The Prometheus text; from elsewhere than this machine only with the scope metrics:read."""
    if not _is_local(request):
        principal = await authenticate(request)
        if not has_scope(principal, principal.tenant, Scope.METRICS_READ):
            raise Forbidden([Scope.METRICS_READ])
    health: Health = request.app.state.health
    return Response(generate_latest(health.registry), media_type=CONTENT_TYPE_LATEST)


def _is_local(request: Request) -> bool:
    """A proxy on this machine is not: it forwards for the whole world, and says so in a header."""
    if request.client is None or any(name in request.headers for name in _FORWARDING):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _uncached(content: object, status: int = 200) -> JSONResponse:
    return JSONResponse(content, status, {"Cache-Control": "no-store"})


ALIVE = _uncached({"status": "alive"})
