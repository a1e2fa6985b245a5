"""create_app: the ASGI application of a node whose objects are already open."""

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI

from app import __version__
from app.admin.context import AdminContext
from app.admin.idempotency import AnsweredOnce
from app.admin.resources.me import me_at_once
from app.admin.router import PREFIX, build_router
from app.auth.authorization.server import AuthorizationServers
from app.console.issuer_sign_in import IssuerSignIn
from app.console.passage import Passage
from app.console.sessions import ConsoleSessions
from app.console.site import Limits, Site
from app.http import authorization, health, problems, resource_metadata
from app.http import registry as registries
from app.http.hosts import HostPolicy
from app.http.pages import pages
from app.http.remote.caller_routing import CallerRouting
from app.http.remote.forwarding import Forwarding
from app.http.remote.late_heads import LateHeads
from app.http.remote.peer_requests import PeerRequests
from app.http.remote.remote_sessions import RemoteSessions
from app.http.transports.access_lines import AccessLines
from app.http.transports.arriving_bodies import ArrivingBodies
from app.http.transports.front import Front
from app.http.transports.http_sse import HttpSse
from app.http.transports.request_log import RequestLog
from app.http.transports.rest import Door, Rest
from app.http.transports.sessionless_http import SessionlessHttp
from app.http.transports.streamable_http import StreamableHttp
from app.limits.caller_rates import RateLimiter
from app.node.gateway import Gateway
from app.node.parts.authorization import authorization_servers
from app.node.parts.records import Records
from app.node.parts.upstreams import policy_of
from app.storage.access.console_sessions import ConsoleSessionRepository
from app.storage.access.people import PersonRepository
from app.storage.audit_queries import AuditLog
from app.storage.due import DueRepository
from app.storage.idempotency import IdempotencyRepository
from app.storage.tools.registry import RegistryRepository
from app.telemetry.metrics import Metrics


def build_api() -> FastAPI:
    """The FastAPI application without its objects: all that its OpenAPI document needs."""
    app = problems.Application(
        title="Trunkline administration",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # app/http/pages.py
        redoc_url=None,
        redirect_slashes=False,
    )
    # With a prefix FastAPI takes the routes as they are; without one it makes all of them, to see that none is empty.
    app.include_router(build_router(), prefix=PREFIX)
    app.include_router(health.router)
    app.include_router(resource_metadata.router)
    app.include_router(authorization.router)
    app.include_router(registries.router)
    return app


def create_app(gateway: Gateway, lines: AccessLines | None = None) -> Front:
    """The Front, with all that is behind it. `lines` gets those of ACCESS_LOG=all; the caller closes it."""
    settings, metrics, records, credentials = gateway.settings, gateway.metrics, gateway.records, gateway.credentials
    registry, guard, router = gateway.sessions.registry, gateway.membership.guard, gateway.membership.router
    ownership, watching = gateway.routes.ownership, gateway.sessions.watching
    app = build_api()
    app.state.signing_in = programs = _authorization(gateway)
    app.state.health = own_health = health.Health(readiness=gateway, registry=metrics.registry)
    app.state.admin_context = AdminContext(
        tenants=records.tenants,
        backends=records.backends,
        toolsets=records.toolsets,
        stored=records.stored,
        offered=gateway.processes.toolsets,
        catalog=gateway.processes.catalog,
        packages=gateway.processes.packages,
        keys=records.keys,
        key_maker=credentials.key_maker,
        issuers=records.issuers,
        connections=records.connections,
        people=PersonRepository(records.database),
        client_secrets=programs.servers.client_secrets,
        sealer=credentials.sealer,
        check_url=credentials.outbound.check,
        upstream_policy=policy_of(settings),
        documents=gateway.processes.documents,
        issuer_check=credentials.issuer_check,
        authenticator=credentials.authenticator,
        now=_now,
        switches=records.switches,
        due=DueRepository(records.database),
        shares=gateway.processes.shares,
        audit=AuditLog(records.database),
        node=gateway.membership.all_nodes,
        archive=gateway.sessions.kept_calls.archive,
        check=gateway.sessions.overview.check,
        rates=RateLimiter("rest", metrics.rate_limited),
        answered_once=AnsweredOnce(IdempotencyRepository(records.database), settings.secret_key, _now),
    )
    forwarding = Forwarding(gateway.routing.peers, metrics, gateway.passing, registry.backend)
    unknown = RateLimiter("unknown_sessions", metrics.rate_limited)
    remote = RemoteSessions(registry, ownership, router, forwarding, gateway.sessions.take_over, unknown)
    callers = CallerRouting(registry, ownership, router, forwarding, remote)
    body, keepalive_s, shares = settings.max_body_bytes, settings.keepalive_s, gateway.processes.shares
    reading: Any = {"max_body_bytes": body, "arriving": ArrivingBodies(), "keepalive_s": keepalive_s, "shares": shares}
    sessionless = SessionlessHttp(gateway.sessions.sessionless, callers, metrics, keepalive_s=keepalive_s)
    streamable = StreamableHttp(registry, remote, sessionless, metrics, **reading)
    sse = HttpSse(registry, remote, metrics, **reading)
    door = Door(
        HostPolicy(settings.allowed_hosts, settings.allowed_origins, settings.node_url),
        RequestLog(metrics, settings.access_log, lines or AccessLines({}), watching.refusals, watching.tallies),
        settings.public_url,
        _inside(gateway),
        gateway.tracer,
        _add_what_anybody_may_ask(app, records, metrics),
    )
    visitors = _visitors(gateway)
    rest = Rest(_site(gateway, app, visitors, programs.servers), door, pages(app, own_health), max_body_bytes=body)
    passage = Passage(visitors, settings.public_url)
    return Front(rest, credentials.authenticator, streamable, sse, registry, guard, shares, passage)


def _authorization(gateway: Gateway) -> authorization.Authorization:
    names = ("token_endpoint", "registrations", "resource_metadata")
    servers = authorization_servers(gateway.records, gateway.credentials, gateway.settings.secret_key)
    refused, registrations, metadata = (RateLimiter(each, gateway.metrics.rate_limited) for each in names)
    return authorization.Authorization(servers, refused, registrations, metadata, gateway.processes.shares)


def _site(gateway: Gateway, app: FastAPI, visitors: ConsoleSessions, servers: AuthorizationServers) -> Site:
    by_issuer = IssuerSignIn(gateway.records.issuers, servers.people.provider, gateway.credentials.sealer, _now)
    names = ("console_sign_in", "authorizations")
    tries = Limits(*(RateLimiter(each, gateway.metrics.rate_limited) for each in names))
    return Site(app, me_at_once, visitors, by_issuer, servers, tries, gateway.settings.public_url)


def _visitors(gateway: Gateway) -> ConsoleSessions:
    repository = ConsoleSessionRepository(gateway.records.database)
    return ConsoleSessions(repository, gateway.credentials.sealer, gateway.settings.secret_key, _now)


def _add_what_anybody_may_ask(app: FastAPI, records: Records, metrics: Metrics) -> resource_metadata.Remembered:
    """The metadata and the registries of tenants; returns who knows the issuers."""
    servers = records.issuers.authorization_servers
    issuers = resource_metadata.Remembered(servers, RateLimiter("resource_metadata", metrics.rate_limited))
    app.state.authorization_servers = issuers
    listing = RegistryRepository(records.database).listing
    app.state.registries = registries.Registries(listing, servers, RateLimiter("registry", metrics.rate_limited))
    return issuers


def _inside(gateway: Gateway) -> PeerRequests | None:
    """The endpoints for other nodes; None where there cannot be any."""
    if gateway.routing.is_alone:
        return None
    settings, tell = gateway.settings, gateway.membership.all_nodes.answer
    late_heads = LateHeads(keepalive_s=settings.keepalive_s)
    return PeerRequests(gateway.routing.credentials, tell, late_heads, max_body_bytes=settings.max_body_bytes)


def _now() -> datetime:
    return datetime.now(UTC)
