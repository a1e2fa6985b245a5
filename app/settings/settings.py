"""The node's settings, with the parser and the default of each.

Nothing else reads settings from the environment. Everything below `gateway.py` receives plain values, not this
object. An empty variable counts as not set.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from app.settings import _parsers as parsers
from app.settings import _urls as urls
from app.settings import hosts, tracing
from app.settings.data_directory import default_data_dir, kept_secret_key, make_directory
from app.settings.environment import parsed, read, refuse_unknown, wrong

MIB_PER_PROCESS = 100  # a small Python or node server with its imports done

_T = TypeVar("_T")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://" + urls.AUTHORITY.pattern)


def _setting(parse: Callable[[str], _T], *, default: Any = None, secret: bool = False) -> Any:
    """A field of `Settings`. `default` is a value, or a function of the settings above it."""
    return field(repr=not secret, metadata={"parse": parse, "secret": secret, "default": default})


def _default_database(values: Mapping[str, Any]) -> str:
    return f"sqlite:///{values['data_dir'] / 'trunkline.db'}"


def _default_max_processes(_: Mapping[str, Any]) -> int:
    return max(8, _memory_bytes() // 2**20 // MIB_PER_PROCESS)


def _memory_bytes() -> int:
    """The memory of this machine, or the limit of its container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return min(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings of one node, made by `from_env`. docs/settings.md says what each is for."""

    host: str = _setting(hosts.host, default="127.0.0.1")
    port: int = _setting(parsers.whole(0, 65535), default=8080)
    tls_cert: Path | None = _setting(parsers.path)
    tls_key: Path | None = _setting(parsers.path)
    data_dir: Path = _setting(parsers.path)
    homes_dir: Path | None = _setting(parsers.path)
    public_url: str | None = _setting(urls.public_url)
    allowed_hosts: tuple[str, ...] = _setting(parsers.list_of(urls.AUTHORITY, "HOST or HOST:PORT"), default=())
    allowed_origins: tuple[str, ...] = _setting(parsers.list_of(_ORIGIN, "https://HOST"), default=())
    trusted_proxies: tuple[hosts.IpNetwork, ...] = _setting(hosts.networks, default=())
    outbound_allow: tuple[hosts.IpNetwork, ...] = _setting(hosts.networks, default=())
    outbound_proxy: str | None = _setting(urls.proxy_url, secret=True)
    outbound_no_proxy: tuple[str | hosts.IpNetwork, ...] = _setting(hosts.names_and_networks, default=())
    outbound_ca: str | None = _setting(parsers.certificates)
    upstream_allow: tuple[hosts.IpNetwork, ...] = _setting(hosts.networks, default=())
    database_url: str = _setting(urls.database_url, default=_default_database, secret=True)
    redis_url: str | None = _setting(urls.redis_url, secret=True)
    node_url: str | None = _setting(urls.node_url)
    node_name: str | None = _setting(hosts.node_name)
    secret_key: bytes = _setting(parsers.secret_key, secret=True)
    npm_registry: str | None = _setting(urls.package_registry, secret=True)
    pypi_index: str | None = _setting(urls.package_registry, secret=True)
    container_engine: str | None = _setting(parsers.program)
    sandbox: Literal["auto", "require"] = _setting(parsers.one_of("auto", "require"), default="auto")
    log_level: str = _setting(parsers.one_of("debug", "info", "warning", "error", "critical"), default="info")
    access_log: str = _setting(parsers.one_of("off", "errors", "all"), default="errors")
    drain_s: float = _setting(parsers.seconds, default=30.0)
    drain_delay_s: float = _setting(parsers.delay, default=0.0)
    max_processes: int = _setting(parsers.whole(1, 1_000_000), default=_default_max_processes)
    fork_templates: int = _setting(parsers.whole(0, 10_000), default=16)
    fork_template_idle_s: float = _setting(parsers.seconds, default=1800.0)
    pool_wait_s: float = _setting(parsers.seconds, default=30.0)
    max_connections: int = _setting(parsers.whole(1, 1_000_000), default=10_000)
    max_connections_per_address: int = _setting(parsers.whole(1, 1_000_000), default=256)
    shed_lag_s: float = _setting(parsers.seconds, default=1.0)
    shed_sessions_percent: int = _setting(parsers.whole(1, 100), default=85)
    shed_calls_percent: int = _setting(parsers.whole(1, 100), default=95)
    metrics_per_backend: int = _setting(parsers.whole(0, 10_000), default=0)
    max_sessions: int = _setting(parsers.whole(1, 10_000_000), default=10_000)
    max_body_bytes: int = _setting(parsers.whole(1024, 2**30), default=4 * 2**20)
    max_line_bytes: int = _setting(parsers.whole(1024, 2**30), default=16 * 2**20)
    warm_memory_mb: int = _setting(parsers.whole(1, 1 << 20), default=1024)
    calls_per_tenant: int = _setting(parsers.whole(0, 100_000), default=2000)
    calls_memory_mb: int = _setting(parsers.whole(1, 100_000), default=32)
    calls_kept_days: int = _setting(parsers.whole(0, 3650), default=0)
    calls_kept_per_tenant: int = _setting(parsers.whole(1, 100_000_000), default=100_000)
    inspection_memory_mb: int = _setting(parsers.whole(0, 100_000), default=64)
    keepalive_s: float = _setting(parsers.seconds, default=15.0)
    stream_after_s: float = _setting(parsers.seconds, default=15.0)
    otlp_endpoint: str | None = _setting(tracing.collector)
    otlp_headers: tuple[tuple[str, str], ...] = _setting(tracing.headers, default=(), secret=True)
    trace_sample: float = _setting(tracing.ratio, default=0.01)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, make: bool = True, **overrides: object) -> "Settings":
        """Reads and checks all settings; creates the data directory, and a secret key in it if none is set.

        `overrides` are settings by field name, from the command line or a test; None is no override. Without `make`
        nothing is created, and `secret_key` is empty if there is none yet.

        Raises:
            SettingsError: one line that names the variable and says what is allowed.
        """
        refuse_unknown(environ, NAMES, _SECRETS)
        values: dict[str, Any] = {}
        for each in fields(cls):
            if overrides.get(each.name) == "":
                raise wrong(each.name, f"the option --{each.name.replace('_', '-')} is empty")
            text = _text_of(overrides.get(each.name)) or read(environ, each.name, secret=each.metadata["secret"])
            if text:
                values[each.name] = parsed(each.name, each.metadata["parse"], text)
            elif each.name == "data_dir":
                values[each.name] = default_data_dir(environ)
            elif each.name == "secret_key":
                _refuse_to_make_a_key(values)
                values[each.name] = kept_secret_key(values["data_dir"], values["database_url"], make=make)
            else:
                default = each.metadata["default"]
                values[each.name] = default(values) if callable(default) else default
            if make and each.name == "data_dir":
                make_directory(values["data_dir"])
        if values["homes_dir"] in (values["data_dir"], *values["data_dir"].parents):
            raise wrong("homes_dir", "must not be DATA_DIR or contain it: backends must not reach what is in there")
        _check_tls(values)
        return cls(**values)

    @property
    def packages(self) -> Path:
        """Where packages of npm and PyPI are installed."""
        return self.data_dir / "packages"

    @property
    def homes(self) -> Path:
        """Where the tenants' backends have their homes."""
        return self.homes_dir or self.data_dir / "homes"


NAMES = tuple(each.name.upper() for each in fields(Settings))
_SECRETS = frozenset(each.name.upper() for each in fields(Settings) if each.metadata["secret"])


def _text_of(override: object) -> str:
    if override is None:
        return ""
    if isinstance(override, bytes):
        return override.hex()
    return ",".join(map(str, override)) if isinstance(override, tuple | list) else str(override)


def _check_tls(values: Mapping[str, Any]) -> None:
    """Raises SettingsError: TLS_CERT and TLS_KEY are not set together, or NODE_URL contradicts them."""
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if values[name] is None and values[other] is not None:
            raise wrong(name, f"must be set where TRUNKLINE_{other.upper()} is: TLS needs a certificate and its key")
    if values["tls_cert"] is not None and (values["node_url"] or "https:").startswith("http:"):
        raise wrong("node_url", "must begin with https:// where TRUNKLINE_TLS_CERT is set: other nodes use this port")


def _refuse_to_make_a_key(values: Mapping[str, Any]) -> None:
    """A key is made only for a single node on loopback.

    Raises:
        SettingsError: other settings require that `secret_key` is set.
    """
    if not hosts.is_loopback(values["host"]):
        reason = f"TRUNKLINE_HOST is not a loopback address (it is {values['host']})"
    elif values["redis_url"]:
        reason = "TRUNKLINE_REDIS_URL is set, and be the same on each node"
    elif urls.is_postgresql(values["database_url"]):
        reason = "TRUNKLINE_DATABASE_URL is a PostgreSQL server, and be the same on each node"
    else:
        return
    raise wrong("secret_key", f"must be set where {reason}: {parsers.KEY_FORM}")
