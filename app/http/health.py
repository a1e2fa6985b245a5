"""/livez, /readyz and /metrics. The first two accept any Host; /metrics an address, NODE_URL's, or an allowed one."""

from dataclasses import dataclass
from typing import Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from app.auth.policy import has_scope
from app.domain import Scope
from app.errors import Forbidden
from app.http.client_address import is_loopback
from app.http.dependencies import authenticate

OK = "ok"
_FORWARDING = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

router = APIRouter(include_in_schema=False)


class Readiness(Protocol):
    async def check(self) -> dict[str, str]:
        """The state of each part, "ok" or what is wrong. Must answer within about a second."""

    def degraded(self) -> dict[str, str]:
        """What does not work but does not make the node unready: by part, with what to do."""


@dataclass(frozen=True, slots=True)
class Health:
    """What these routes need, as `app.state.health`."""

    readiness: Readiness
    registry: CollectorRegistry


@router.get("/livez")
async def livez() -> JSONResponse:
    """The event loop runs. Checks nothing else: restarting the node does not mend a database."""
    return ALIVE


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    return await readiness(request.app.state.health)


async def readiness(health: Health) -> JSONResponse:
    """The answer of /readyz: 503 unless every part is "ok"."""
    parts = await health.readiness.check()
    if all(state == OK for state in parts.values()):
        return _uncached({"status": "ready", "parts": parts, "degraded": health.readiness.degraded()})
    return _uncached({"status": "not ready", "parts": parts}, 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The Prometheus text; requests from another machine need the scope metrics:read."""
    if not _is_local(request):
        principal = await authenticate(request)
        if not has_scope(principal, principal.tenant, Scope.METRICS_READ):
            raise Forbidden([Scope.METRICS_READ])
    health: Health = request.app.state.health
    return Response(generate_latest(health.registry), media_type=CONTENT_TYPE_LATEST)


def _is_local(request: Request) -> bool:
    """Not for what a proxy on this machine forwards, which has a header that says so."""
    is_forwarded = any(name in request.headers for name in _FORWARDING)
    return request.client is not None and not is_forwarded and is_loopback(request.client.host)


def _uncached(content: object, status: int = 200) -> JSONResponse:
    return JSONResponse(content, status, {"Cache-Control": "no-store"})


ALIVE = _uncached({"status": "alive"})
