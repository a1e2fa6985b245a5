"""Every Prometheus metric of a node, declared once. Label values come from closed sets.

The message path observes through `OperationHistogram`, which costs a bisection and two additions; prometheus-client's
own histogram takes a lock and costs ten times that.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

# The OpenTelemetry MCP conventions' bucket bounds, in seconds.
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BUCKETS_OF_PHASES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
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

# Of tenants, sessions and the node. The names of `limits.caller_rates` come in addition.
LIMITS = (
    "sessions", "sessions_per_principal", "in_flight", "requests_per_second", "calls_per_session", "processes",
    "max_processes", "memory_mb", "spawns_per_minute", "node_processes", "node_waiting", "node_sessions",
    "unread_answers", "loop_share", "toolset_lists", "requests_per_minute", "calls_per_day",
)  # fmt: skip
# Of processes: `memory`, `pids`, `cpu`, `files` and `disk` are a process's own, the others its tenant's.
DENIALS = ("file", "address", "pids", "memory", "files", "disk")  # `processes.denials.Kind`
PROCESS_LIMITS = ("memory", "disk", "files", "pids", "cpu", "memory_mb", "spawns_per_minute")
FORK_FAILURES = ("not_python", "unfit", "differs", "died")
# What confines a process: the names of `sandbox.tiers.Tier`, in lower case.
TIERS = ("none", "base", "kernel", "namespaces", "assisted")

# Reasons of refusals that are not the caller's.
FAULTS = (
    "backend_error", "backend_exited", "backend_unavailable", "backend_busy", "upstream_refused", "upstream_failed",
    "overloaded", "routes_unavailable",
    "node_unavailable", "storage_unavailable", "storage_read_only", "provider_unavailable", "internal_error",
)  # fmt: skip


def method_label(method: str) -> str:
    """The method as a label value."""
    return method if method in METHODS else "_OTHER"


def error_label(code: int) -> str:
    """A JSON-RPC error code as a label value."""
    return str(code) if code in ERROR_CODES else "_OTHER"


class BackendLabels:
    """The labels `tenant` and `backend`: of the first so many backends that are seen, and OTHER for the rest. So there
    are no more series than an operator has asked for, and none changes its name."""

    OTHER = ("_OTHER", "_OTHER")  # no tenant and no backend can have this name

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[tuple[str, str]] = set()

    def of(self, backend: tuple[str, str]) -> tuple[str, str]:
        """The labels of this backend (tenant, name)."""
        if backend in self._seen:
            return backend
        if len(self._seen) >= self._most:
            return self.OTHER
        self._seen.add(backend)
        return backend


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
        self._series = defaultdict[tuple[str, ...], Series](Series)
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """The series with these label values; keep it where it is used often."""
        return self._series[values]

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The family without samples, for the registry's check of duplicate names."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family with its samples, for a scrape."""
        family = self._family()
        for values, series in list(self._series.items()):
            running, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], series.counts, strict=True):
                running += count
                buckets.append((bound, float(running)))
            family.add_metric(values, buckets, series.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._labels)


class Metrics:
    """All metrics of one node. `per_backend`: how many backends have series of their own."""

    def __init__(self, version: str, per_backend: int = 0) -> None:
        self.registry = CollectorRegistry()
        self.backend_labels = BackendLabels(per_backend)
        self.tenant_labels = BackendLabels(per_backend)
        self._declare_calls_and_sessions()
        self._declare_processes()
        self._declare_use_of_backends()
        self._declare_limits()
        self._declare_node(version)
        self._declare_egress()
        self._declare_upstreams()
        self._declare_idle_sessions()
        self.trace_spans = self._counter(
            "trunkline_trace_spans_total", "Spans that were to be sent to the collector, by result.", "result"
        )
        self._begin_at_zero()

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(name, documentation, labels, registry=self.registry)

    def _seconds(self, name: str, documentation: str, buckets: tuple[float, ...] = BUCKETS) -> Histogram:
        return Histogram(name, documentation, buckets=buckets, registry=self.registry)

    def _declare_idle_sessions(self) -> None:
        self.sessions_parked = self._gauge(
            "trunkline_sessions_parked", "Open sessions that have given their process back until the next message."
        )
        self.session_wakes = self._counter(
            "trunkline_session_wakes_total", "Parked sessions that got a process again, or none (failed).", "result"
        )
        self.session_wake_seconds = self._seconds(
            "trunkline_session_wake_seconds", "Time from the message to a parked session to its process."
        )
        self.sessions_frozen = self._gauge("trunkline_sessions_frozen", "Open sessions whose process stands still.")
        self.session_freezes = self._counter(
            "trunkline_session_freezes_total", "Processes of idle sessions that were stopped, or were not.", "result"
        )
        self.session_thaws = self._counter(
            "trunkline_session_thaws_total", "Frozen processes that go on, or were ended (failed).", "result"
        )
        self.session_thaw_seconds = self._seconds(
            "trunkline_session_thaw_seconds", "Time from the message to a frozen session until its process goes on."
        )

    def _declare_calls_and_sessions(self) -> None:
        self.server_operations = OperationHistogram(
            "mcp_server_operation_duration_seconds",
            "Time from a client's request to its answer.",
            ("mcp_method_name", "error_type", "network_transport", "mcp_protocol_version"),
            self.registry,
        )
        self.client_operations = OperationHistogram(
            "mcp_client_operation_duration_seconds",
            "Time from a request written to a backend to its answer.",
            ("mcp_method_name", "error_type"),
            self.registry,
        )
        self.session_seconds = self._seconds("mcp_server_session_duration_seconds", "Lifetime of sessions.")
        self.sessions = self._gauge("trunkline_sessions", "Open sessions.", "transport")
        self.sessions_opened = self._counter("trunkline_sessions_opened_total", "Sessions opened.", "transport")
        self.sessions_closed = self._counter("trunkline_sessions_closed_total", "Sessions closed, by reason.", "reason")
        self.streams = self._gauge("trunkline_streams", "Open event streams, by kind.", "kind")
        self.messages_dropped = self._counter(
            "trunkline_messages_dropped_total", "Messages that could not be delivered, by reason.", "reason"
        )
        self.inspections_open = self._gauge("trunkline_inspections_open", "Open inspections of sessions.")
        self.inspection_messages_dropped = self._counter(
            "trunkline_inspection_messages_dropped_total",
            "Messages that inspections have seen and could not keep, as INSPECTION_MEMORY_MB was used up.",
        )
        self.toolset_members_lost = self._counter(
            "trunkline_toolset_members_lost_total",
            "Members of toolsets that ended in a session, or could not be started for one, by the reason that its "
            "calls got.",
            "reason",
        )
        self.recipe_runs = self._counter(
            "trunkline_recipe_runs_total",
            "Runs of recipes, by outcome: `ok`, `failed`, `declined` or `dismissed` by the user, `cancelled` by the "
            "caller, `timeout`, `session_ended`.",
            "outcome",
        )
        self.recipe_steps = self._counter(
            "trunkline_recipe_steps_total", "Steps of recipes that have an outcome, by outcome.", "outcome"
        )
        self.catalog_inquiries = self._counter(
            "trunkline_catalog_inquiries_total", "Backends that were asked what they offer, by result.", "result"
        )

    def _declare_processes(self) -> None:
        self.processes = self._gauge("trunkline_processes", "Backend processes, by state.", "state")
        self.process_spawns = self._counter(
            "trunkline_process_spawns_total", "Backend processes started, or failed to start.", "result"
        )
        self.process_starts = self._counter(
            "trunkline_process_starts_total",
            "Backend processes started, by how: `exec`, `fork`, or as a `template` that others are forked from.",
            "start",
        )
        self.fork_templates = self._gauge("trunkline_fork_templates", "Templates that processes are forked from.")
        self.fork_failures = self._counter(
            "trunkline_fork_template_failures_total",
            "Backends whose processes are executed although they are to be forked, by reason.",
            "reason",
        )
        self.process_spawn_seconds = self._seconds(
            "trunkline_process_spawn_seconds", "Time to start a backend process.", SPAWN_BUCKETS
        )
        self.spawner_restarts = self._counter(
            "trunkline_spawner_restarts_total", "Spawners started in place of one that had died."
        )
        self.process_spawn_phase_seconds = Histogram(
            "trunkline_process_spawn_phase_seconds",
            "Time to start a backend process, by phase.",
            ("phase",),
            buckets=BUCKETS_OF_PHASES,
            registry=self.registry,
        )
        self.processes_by_tier = self._gauge(
            "trunkline_processes_by_tier", "Backend processes, by what confines them.", "tier"
        )
        self.process_exits = self._counter(
            "trunkline_process_exits_total", "Backend processes ended, by reason.", "reason"
        )
        self.sandbox_tier = self._gauge(
            "trunkline_sandbox_tier", "The tier of the sandbox that backends run in, 0 to 3."
        )
        self.sandbox_enforced = self._gauge(
            "trunkline_sandbox_enforced", "Whether a guarantee of the sandbox held at this node's start.", "guarantee"
        )
        self.process_resident_bytes = self._gauge(
            "trunkline_process_resident_bytes", "Resident memory of all backend processes."
        )
        self.warm_leases = self._counter(
            "trunkline_warm_leases_total", "Sessions that got a warm process, or had to wait for a start.", "result"
        )
        self.warm_target = self._gauge(
            "trunkline_warm_target", "Processes that should be warm for backends with `warm: auto`, by why.", "why"
        )
        self.pool_wait_seconds = self._seconds("trunkline_pool_wait_seconds", "Time a session waited for a process.")
        self.breaker_open = self._gauge(
            "trunkline_breaker_open", "Backends that are not started for now because they keep dying at their start."
        )

    def _declare_use_of_backends(self) -> None:
        of = ("tenant", "backend")
        self.backend_resident = self._gauge(
            "trunkline_backend_resident_bytes", "Resident memory of a backend's processes.", *of
        )
        self.backend_cpu = self._counter(
            "trunkline_backend_cpu_seconds_total", "CPU time of a backend's processes.", *of
        )
        self.backend_sent = self._counter(
            "trunkline_backend_sent_bytes_total", "Bytes written to the stdin of a backend's processes.", *of
        )
        self.backend_received = self._counter(
            "trunkline_backend_received_bytes_total", "Bytes read from the stdout of a backend's processes.", *of
        )
        self.cpu_throttled = self._counter(
            "trunkline_cpu_throttled_seconds_total", "Time in which processes had to wait because of their cpu limit."
        )
        self.oom_kills = self._counter(
            "trunkline_oom_kills_total",
            "Kills by the kernel because of a memory limit, of processes in control groups.",
        )

    def _declare_limits(self) -> None:
        self.kept_calls = self._counter(
            "trunkline_kept_calls_total",
            "Calls that were to be kept in the database: `written`, or `dropped` because it took them too slowly.",
            "result",
        )
        self.auth_failures = self._counter(
            "trunkline_auth_failures_total", "Requests with a missing, wrong or expired credential.", "reason"
        )
        self.new_addresses = self._counter(
            "trunkline_credential_new_addresses_total", "Credentials used from an address not seen with them before."
        )
        self.rate_limited = self._counter("trunkline_rate_limited_total", "Requests refused by a limit.", "limit")
        self.limits_hit = self._counter(
            "trunkline_limits_hit_total", "Times that processes, or starts of them, ran into a limit.", "limit"
        )
        self.denials = self._counter(
            "trunkline_denials_total", "What its sandbox or a limit denied a process, as far as it is known.", "kind"
        )
        self.refusals = self._counter(
            "trunkline_refusals_total", "Requests that the gateway refused with status 400 or more.", "reason"
        )
        self.tenants_near_limit = self._gauge(
            "trunkline_tenants_near_limit", "Tenants of this node that have used 80 % of a limit or more.", "limit"
        )
        self.tenants_at_limit = self._gauge(
            "trunkline_tenants_at_limit", "Tenants of this node that have used up a limit.", "limit"
        )
        self.node_used = self._gauge("trunkline_node_used", "Use of a limit of the node.", "limit")
        self.node_limit = self._gauge("trunkline_node_limit", "A limit of the node.", "limit")
        self.shed = self._counter(
            "trunkline_shed_total", "Sessions and calls refused because the node is overloaded.", "what", "mark"
        )
        self.loop_share_waits = self._counter(
            "trunkline_loop_share_wait_seconds_total", "Time that work waited for its turn on the event loop.", "tenant"
        )

    def _declare_node(self, version: str) -> None:
        self._gauge("trunkline_build_info", "Always 1; the label is the version.", "version").labels(version).set(1)
        self.loop_lag_seconds = self._gauge("trunkline_loop_lag_seconds", "How late the event loop is, on average.")
        self.memory_used_bytes = self._gauge("trunkline_memory_used_bytes", "Memory used in the container or machine.")
        self.memory_limit_bytes = self._gauge("trunkline_memory_limit_bytes", "Memory of the container or machine.")
        self.descriptors_used = self._gauge("trunkline_descriptors_used", "Open file descriptors of the node.")
        self.descriptors_lent = self._gauge("trunkline_descriptors_lent", "Kept for sessions, lent to connections.")
        self.descriptors_limit = self._gauge("trunkline_descriptors_limit", "File descriptors that the node may open.")
        self.job_failures = self._counter("trunkline_job_failures_total", "Jobs of the node that failed.", "job")
        self.connections = self._gauge("trunkline_connections", "Open client connections.")
        self.tls_certificate_expires = self._gauge(
            "trunkline_tls_certificate_expires_timestamp_seconds", "When the served certificate expires; 0: no TLS."
        )
        self.connections_refused = self._counter(
            "trunkline_connections_refused_total", "Client connections refused or closed by the gateway.", "reason"
        )
        self.forwards = self._counter(
            "trunkline_forwards_total", "Requests forwarded to the node that has the session.", "result"
        )
        self.forward_seconds = OperationHistogram(
            "trunkline_forward_seconds", "Time until the other node's answer began.", (), self.registry
        )
        self.takeovers = self._counter(
            "trunkline_takeovers_total", "Sessions taken over from a node that is gone.", "result"
        )
        self.route_store_errors = self._counter(
            "trunkline_route_store_errors_total", "Failed Redis commands, and forged records found in Redis.", "reason"
        )

    def _declare_egress(self) -> None:
        self.egress_connections = self._gauge(
            "trunkline_egress_connections", "Connections of backends through the egress proxy."
        )
        self.egress_bytes = self._counter(
            "trunkline_egress_bytes_total", "Bytes through the egress proxy, sent or received by backends.", "direction"
        )
        self.egress_refusals = self._counter(
            "trunkline_egress_refusals_total", "Connections that the egress proxy refused or could not make.", "reason"
        )

    def _declare_upstreams(self) -> None:
        self.upstream_requests = self._counter(
            "trunkline_upstream_requests_total", "Requests to servers that are reached by URL, by result.", "result"
        )
        self.upstream_seconds = self._seconds(
            "trunkline_upstream_request_seconds", "Time from a request to such a server to its answer."
        )
        self.upstream_sessions = self._gauge("trunkline_upstream_sessions", "Open sessions with such servers.")
        self.upstream_connections = self._gauge("trunkline_upstream_connections", "Open connections to such servers.")

    def _begin_at_zero(self) -> None:
        """Alerts over `increase` do not see the first event of a series that begins with it: so it begins at 0."""
        for limit in LIMITS:
            self.rate_limited.labels(limit)
        for limit in PROCESS_LIMITS:
            self.limits_hit.labels(limit)
        for kind in DENIALS:
            self.denials.labels(kind)
        for reason in FAULTS:
            self.refusals.labels(reason)
        self.process_spawns.labels("failed")
        for reason in FORK_FAILURES:
            self.fork_failures.labels(reason)
        self.takeovers.labels("failed")
        self.route_store_errors.labels("poisoned")


def value_of(gauge: Gauge) -> int:
    """Of a gauge that counts, and has no labels."""
    return int(sum(sample.value for metric in gauge.collect() for sample in metric.samples))
