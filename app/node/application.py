"""create_app: the ASGI application of a node whose objects are already open."""

from datetime import UTC, datetime
from functools import partial

from fastapi import FastAPI

from app import __version__
from app.admin.context import AdminContext, IssuerContext
from app.admin.idempotency import AnsweredOnce
from app.admin.router import build_router
from app.cluster.all_nodes import answer_for
from app.http import health, problems, resource_metadata
from app.http.hosts import HostPolicy
from app.http.pages import pages
from app.limits.rate_limiter import RateLimiter
from app.node.gateway import Gateway
from app.storage.audit import AuditLog
from app.storage.idempotency import IdempotencyRepository
from app.transports.access_lines import AccessLines
from app.transports.front import Front
from app.transports.remote.caller_routing import CallerRouting
from app.transports.remote.forwarding import Forwarding
from app.transports.remote.inside import Inside
from app.transports.remote.late_heads import LateHeads
from app.transports.remote.remote_sessions import RemoteSessions
from app.transports.request_log import RequestLog
from app.transports.sessionless_http import SessionlessHttp
from app.transports.sse import HttpSse
from app.transports.streamable_http import StreamableHttp


def build_api() -> FastAPI:
    """The FastAPI application without what it works on: all that its OpenAPI document needs."""
    app = FastAPI(
        title="Trunkline administration",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # app/http/reader.py
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    app.include_router(build_router())
    app.include_router(health.router)
    app.include_router(resource_metadata.router)
    return app


def create_app(gateway: Gateway, lines: AccessLines | None = None) -> Front:
    """The Front, with the MCP endpoints in it and the FastAPI application behind it. `lines` take what ACCESS_LOG=all
    has to say; whoever made them closes them."""
    settings = gateway.settings
    app = build_api()
    app.state.health = own_health = health.Health(readiness=gateway, registry=gateway.metrics.registry)
    app.state.admin = AdminContext(
        tenants=gateway.tenants,
        backends=gateway.backends,
        keys=gateway.keys,
        key_maker=gateway.key_maker,
        authenticator=gateway.authenticator,
        effects=gateway.effects,
        now=_now,
        switches=gateway.switches,
        audit=AuditLog(gateway.database),
        node=gateway.node,
        rates=RateLimiter("rest", gateway.metrics.rate_limited),
        answered_once=AnsweredOnce(IdempotencyRepository(gateway.database), settings.secret_key, _now),
    )
    app.state.issuers = IssuerContext(gateway.issuers, gateway.sealer, gateway.outbound.check, gateway.issuer_check)
    app.state.authorization_servers = resource_metadata.Remembered(
        gateway.issuers.authorization_servers, RateLimiter("resource_metadata", gateway.metrics.rate_limited)
    )
    forwarding = Forwarding(gateway.routing.peers, gateway.metrics, gateway.passing)
    unknown = RateLimiter("unknown_sessions", gateway.metrics.rate_limited)
    elsewhere = RemoteSessions(
        gateway.registry, gateway.ownership, gateway.router, forwarding, gateway.take_over, unknown
    )
    body, keepalive_s = settings.max_body_bytes, settings.keepalive_s
    callers = CallerRouting(gateway.registry, gateway.ownership, gateway.router, forwarding, elsewhere)
    modern = SessionlessHttp(gateway.implicit, callers, gateway.metrics, keepalive_s=keepalive_s)
    streamable = StreamableHttp(
        gateway.registry, elsewhere, modern, gateway.metrics, max_body_bytes=body, keepalive_s=keepalive_s
    )
    sse = HttpSse(gateway.registry, elsewhere, gateway.metrics, max_body_bytes=body, keepalive_s=keepalive_s)
    return Front(
        app,
        HostPolicy(settings.allowed_hosts, settings.allowed_origins, settings.node_url),
        gateway.authenticator,
        streamable,
        sse,
        max_body_bytes=settings.max_body_bytes,
        public_url=settings.public_url,
        inside=_inside(gateway),
        registry=gateway.registry,
        guard=gateway.guard,
        requests=RequestLog(gateway.metrics, settings.access_log, lines or AccessLines({})),
        pages=pages(app, own_health),
    )


def _inside(gateway: Gateway) -> Inside | None:
    """What other nodes may ask of this one; None where there cannot be any."""
    if gateway.routing.is_alone:
        return None
    settings, tell = gateway.settings, partial(answer_for, gateway.overview)
    late_heads = LateHeads(keepalive_s=settings.keepalive_s)
    return Inside(gateway.routing.credentials, tell, late_heads, max_body_bytes=settings.max_body_bytes)


def _now() -> datetime:
    return datetime.now(UTC)
