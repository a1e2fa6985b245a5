"""Every Prometheus metric, declared once, on a registry of the node's own.

Labels come from closed sets. The message path observes through `OperationHistogram`, which costs a
bisection and two additions; prometheus-client's own histogram takes a lock and costs ten times that.
"""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

# The OpenTelemetry MCP conventions' bucket bounds, in seconds.
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SPAWN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

# A method outside this set is counted as `_OTHER`: a client must not be able to make new label values.
METHODS = frozenset({
    "initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/templates/list",
    "resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get",
    "completion/complete", "logging/setLevel", "tasks/get", "tasks/result", "tasks/list", "tasks/cancel",
    "server/discover", "subscriptions/listen", "sampling/createMessage", "elicitation/create", "roots/list",
})  # fmt: skip
ERROR_CODES = frozenset({
    *range(-32022, -32019), *range(-32016, -32009), -32700, -32603, -32602, -32601, -32600, -32002, -32001, -32800,
})  # fmt: skip

# Of tenants, sessions and the node; those that slow somebody who tries are named where they are kept.
LIMITS = (
    "sessions", "sessions_per_principal", "in_flight", "requests_per_second", "calls_per_session", "processes",
    "max_processes", "node_processes", "node_waiting", "node_sessions",
)  # fmt: skip

# Reasons of refusals that are not the caller's.
FAULTS = (
    "backend_error", "backend_exited", "backend_unavailable", "backend_busy", "overloaded", "routes_unavailable",
    "node_unavailable", "storage_unavailable", "storage_read_only", "internal_error",
)  # fmt: skip


def method_label(method: str) -> str:
    """The method as a label value."""
    return method if method in METHODS else "_OTHER"


def error_label(code: int) -> str:
    """A JSON-RPC error code as a label value."""
    return str(code) if code in ERROR_CODES else "_OTHER"


class Series:
    """The observations of one set of label values."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one operation that took this long."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class OperationHistogram(Collector):
    """A histogram for the event loop's thread only: no locks, children kept by their label values."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """The series with these label values; keep it where it is used often."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = Series()
        return series

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The family without samples, for the registry's check of duplicate names."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labels)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What a scrape reads."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, series in list(self._series.items()):
            running, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], series.counts, strict=True):
                running += count
                buckets.append((bound, float(running)))
            family.add_metric(values, buckets, series.total)
        yield family


class Metrics:
    """All metrics of one node."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._declare_calls(self.registry)
        self._declare_sessions(self.registry)
        self._declare_processes(self.registry)
        self._declare_credentials(self.registry)
        self._declare_limits(self.registry)
        self._declare_machine(self.registry)
        self._declare_nodes(self.registry)
        self._declare_connections(self.registry)
        self.build_info = Gauge(
            "trunkline_build_info", "Always 1; the label is the version.", ["version"], registry=self.registry
        )
        self.build_info.labels(version).set(1)
        self._begin_at_zero()

    def _declare_calls(self, registry: CollectorRegistry) -> None:
        self.server_operations = OperationHistogram(
            "mcp_server_operation_duration_seconds",
            "Time from a client's request to its answer.",
            ("mcp_method_name", "error_type", "network_transport", "mcp_protocol_version"),
            registry,
        )
        self.client_operations = OperationHistogram(
            "mcp_client_operation_duration_seconds",
            "Time from a request written to a backend to its answer.",
            ("mcp_method_name", "error_type"),
            registry,
        )

    def _declare_sessions(self, registry: CollectorRegistry) -> None:
        self.session_seconds = Histogram(
            "mcp_server_session_duration_seconds", "How long sessions lived.", buckets=BUCKETS, registry=registry
        )
        self.sessions = Gauge("trunkline_sessions", "Open sessions.", ["transport"], registry=registry)
        self.sessions_opened = Counter(
            "trunkline_sessions_opened_total", "Sessions opened.", ["transport"], registry=registry
        )
        self.sessions_closed = Counter(
            "trunkline_sessions_closed_total", "Sessions closed, by reason.", ["reason"], registry=registry
        )
        self.streams = Gauge("trunkline_streams", "Open event streams, by kind.", ["kind"], registry=registry)
        self.messages_dropped = Counter(
            "trunkline_messages_dropped_total",
            "Messages that reached nobody, by reason.",
            ["reason"],
            registry=registry,
        )

    def _declare_processes(self, registry: CollectorRegistry) -> None:
        self.processes = Gauge("trunkline_processes", "Backend processes, by state.", ["state"], registry=registry)
        self.process_spawns = Counter(
            "trunkline_process_spawns_total", "Backend processes started.", ["result"], registry=registry
        )
        self.process_spawn_seconds = Histogram(
            "trunkline_process_spawn_seconds",
            "Time from the order to start a process until it runs.",
            buckets=SPAWN_BUCKETS,
            registry=registry,
        )
        self.process_exits = Counter(
            "trunkline_process_exits_total", "Backend processes ended, by reason.", ["reason"], registry=registry
        )
        self.process_resident_bytes = Gauge(
            "trunkline_process_resident_bytes", "Resident memory of all backend processes.", registry=registry
        )
        self.warm_leases = Counter(
            "trunkline_warm_leases_total", "Sessions that found a warm process, or did not.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.pool_wait_seconds = Histogram(
            "trunkline_pool_wait_seconds", "Time a session waited for a process.", buckets=BUCKETS, registry=registry
        )
        self.breaker_open = Gauge(
            "trunkline_breaker_open", "Backends that are not started because they die at once.", registry=registry
        )

    def _declare_credentials(self, registry: CollectorRegistry) -> None:
        self.auth_failures = Counter(
            "trunkline_auth_failures_total", "Requests with no, a wrong or a spent credential.", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.new_addresses = Counter(
            "trunkline_credential_new_addresses_total", "Credentials used from an address that is new for them.",
            registry=registry,
        )  # fmt: skip

    def _declare_limits(self, registry: CollectorRegistry) -> None:
        self.rate_limited = Counter(
            "trunkline_rate_limited_total", "Requests refused by a limit.", ["limit"], registry=registry
        )
        self.refusals = Counter(
            "trunkline_refusals_total", "Requests answered with an error of the gateway's own and an HTTP status of "
            "400 or more, by reason.", ["reason"], registry=registry,
        )  # fmt: skip
        self.tenants_near_limit = Gauge(
            "trunkline_tenants_near_limit", "Tenants of this node that have used 80 % of a limit, or all of it.",
            ["limit"], registry=registry,
        )  # fmt: skip
        self.tenants_at_limit = Gauge(
            "trunkline_tenants_at_limit", "Tenants of this node that have used up a limit.", ["limit"],
            registry=registry,
        )  # fmt: skip
        self.node_used = Gauge(
            "trunkline_node_used", "What is used of a limit of the node.", ["limit"], registry=registry
        )
        self.node_limit = Gauge("trunkline_node_limit", "A limit of the node.", ["limit"], registry=registry)
        self.shed = Counter(
            "trunkline_shed_total", "Sessions and calls refused because the node is overloaded.", ["what", "mark"],
            registry=registry,
        )  # fmt: skip

    def _declare_machine(self, registry: CollectorRegistry) -> None:
        self.loop_lag_seconds = Gauge(
            "trunkline_loop_lag_seconds", "How late the event loop is, over the last second or so.", registry=registry
        )
        self.memory_used_bytes = Gauge(
            "trunkline_memory_used_bytes", "Memory used in this container, or on this machine.", registry=registry
        )
        self.memory_limit_bytes = Gauge(
            "trunkline_memory_limit_bytes", "Memory that this container, or this machine, has.", registry=registry
        )
        self.descriptors_used = Gauge(
            "trunkline_descriptors_used", "File descriptors that the node has open.", registry=registry
        )
        self.descriptors_limit = Gauge(
            "trunkline_descriptors_limit", "File descriptors that the node may have open.", registry=registry
        )

    def _declare_nodes(self, registry: CollectorRegistry) -> None:
        self.forwards = Counter(
            "trunkline_forwards_total", "Requests sent on to the node that has the session.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.forward_seconds = OperationHistogram(
            "trunkline_forward_seconds", "Time until the other node's answer began.", (), registry
        )
        self.takeovers = Counter(
            "trunkline_takeovers_total", "Sessions taken over from a node that is gone.", ["result"], registry=registry
        )
        self.route_store_errors = Counter(
            "trunkline_route_store_errors_total", "Commands to Redis that failed, and records in it that were forged.",
            ["reason"], registry=registry,
        )  # fmt: skip

    def _declare_connections(self, registry: CollectorRegistry) -> None:
        self.connections = Gauge("trunkline_connections", "Connections of clients, open now.", registry=registry)
        self.connections_refused = Counter(
            "trunkline_connections_refused_total", "Connections refused, or ended for what their clients did.",
            ["reason"], registry=registry,
        )  # fmt: skip

    def _begin_at_zero(self) -> None:
        """A series that begins with its first event has not increased: no rule over `increase` would see that event."""
        for limit in LIMITS:
            self.rate_limited.labels(limit)
        for reason in FAULTS:
            self.refusals.labels(reason)
        self.process_spawns.labels("failed")
        self.takeovers.labels("failed")
        self.route_store_errors.labels("poisoned")

    def connections_open(self) -> int:
        """What the gauge of connections shows."""
        return int(sum(sample.value for metric in self.connections.collect() for sample in metric.samples))
