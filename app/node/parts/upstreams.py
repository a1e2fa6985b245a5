"""Sessions with servers that are reached by URL, and which of them may be reached."""

from urllib.parse import urlsplit

from app.auth.outbound_proxy import NodeProxy
from app.auth.outbound_urls import Policy
from app.backends.failures import FailureLog
from app.backends.openapi.apis import Apis
from app.backends.upstreams.connecting import Connector
from app.backends.upstreams.tls import TlsContexts
from app.backends.upstreams.upstream_secrets import SecretOpener
from app.backends.upstreams.upstreams import Parts, Upstreams
from app.jail.egress.dialling import Dialler
from app.jail.egress.names import Names
from app.node.parts.credentials import Credentials
from app.node.parts.opening import Opening
from app.node.parts.own_parts import own_parts
from app.settings.environment import PREFIX
from app.settings.settings import Settings

ALLOW_SETTING = PREFIX + "UPSTREAM_ALLOW"


def policy_of(settings: Settings) -> Policy:
    """Which URLs a backend may have."""
    return Policy(settings.upstream_allow, ALLOW_SETTING)


async def open_upstreams(opening: Opening, credentials: Credentials, apis: Apis, failures: FailureLog) -> Upstreams:
    """Connects to nothing yet."""
    settings = opening.settings
    policy = policy_of(settings)
    own_hosts, own_ports = _own_hosts(settings), _own_ports(settings)
    dialler = Dialler(Names(), policy.allow, own_hosts, own_ports, own_parts(settings))
    open_secrets, limit_bytes = SecretOpener(credentials.sealer), settings.max_line_bytes
    proxy = NodeProxy.of(settings.outbound_proxy, settings.outbound_no_proxy)
    connector = Connector(dialler, policy, TlsContexts(ca=settings.outbound_ca), proxy)
    parts = Parts(connector, dialler, open_secrets, apis.of, failures, limit_bytes, opening.shares)
    return await opening.stack.enter_async_context(Upstreams(parts, opening.metrics))


def _own_hosts(settings: Settings) -> tuple[str, ...]:
    """The gateway would be its own server, and that one's, and so on."""
    urls = (settings.node_url, settings.public_url)
    return tuple(host for url in urls if url and (host := urlsplit(url).hostname))


def _own_ports(settings: Settings) -> tuple[int, ...]:
    """Those on which it listens, and those that lead to it from elsewhere."""
    urls = [urlsplit(url) for url in (settings.node_url, settings.public_url) if url]
    return (settings.port, *(url.port or (443 if url.scheme == "https" else 80) for url in urls))
