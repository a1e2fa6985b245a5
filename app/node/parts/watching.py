"""What this node remembers of its last minutes: what went on, and what is wrong."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from app.backends.inventory import BackendSnapshot
from app.cluster.node_status.activity import Activity
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.problems import signs
from app.cluster.node_status.problems.problem import Problem, Severity
from app.cluster.node_status.problems.watch import ProblemWatch
from app.cluster.node_status.watching import Watching, look
from app.cluster.redis.latency import Latency
from app.jail.sandbox.report import SandboxView
from app.limits.lately import Refusals
from app.limits.overload import Overload
from app.limits.tenant_limits import Tallies
from app.node.certificate_files import CertificateFiles
from app.node.parts.credentials import Credentials
from app.node.parts.processes import Processes
from app.node.parts.records import Records
from app.node.parts.routes import Routes
from app.node.readiness import changes_words, database_words, nodes_words, overload_words, redis_words, slow_words
from app.sessions.registry import SessionRegistry


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at."""

    node: str
    records: Records
    credentials: Credentials
    processes: Processes
    routes: Routes
    registry: SessionRegistry
    overload: Overload
    sandbox: SandboxView
    latency: Latency | None  # without Redis there is none
    inspecting: Inspecting
    certificate: CertificateFiles | None  # without TLS there is none


def watch(watched: Watched, tallies: Tallies) -> Watching:
    """Starts nothing."""
    processes, registry, refusals = watched.processes, watched.registry, Refusals()
    supervisor, pool, failures = processes.supervisor, processes.pool, processes.failures
    uses = watched.credentials.authenticator.uses

    def of_backends() -> Iterator[Problem]:
        last = dict(failures.every())
        snapshot: dict[tuple[str, str], BackendSnapshot] = {**processes.upstreams.snapshot(), **pool.snapshot()}
        return signs.of_backends(snapshot, last)

    problems = ProblemWatch(
        watched.node,
        [
            partial(_of_node, watched),
            of_backends,
            lambda: signs.of_certificates(processes.upstreams.specs(), time.time()),
            lambda: signs.of_failures(failures.every(), time.time()),
            lambda: signs.of_processes(supervisor.processes),
            lambda: signs.of_tenants(registry.gates, processes.budgets),
            lambda: signs.of_refusals(refusals.limits),
            lambda: signs.of_bad_credentials(refusals.credentials),
            lambda: signs.of_credentials(uses.new_addresses(), uses.busy()),
            lambda: signs.of_sandbox(watched.sandbox),
            watched.inspecting.problems,
            lambda: () if watched.certificate is None else watched.certificate.problems(),
        ],
    )
    activity = Activity(tallies, lambda: look(registry.gates, pool.waiting(), supervisor.processes))
    return Watching(tallies, refusals, activity, problems)


def _of_node(watched: Watched) -> Iterator[Problem]:
    """What /readyz says too."""
    redis, overload, peers = watched.routes.routing.redis, watched.overload, watched.routes.routing.peers
    here: Callable[..., Problem] = partial(_here, watched.node)
    database = watched.records.watch
    if database.problem is not None:
        yield here("database", "critical", database_words(database.problem))
    elif database.refusal is not None:
        yield here("database", "critical", changes_words(database.refusal))
    elif database.slowness is not None:
        yield here("database_slow", "warning", slow_words(database.slowness))
    if redis is not None and redis.problem is not None:
        yield here("redis", "critical", redis_words(redis.problem, is_up=redis.is_up))
    slow_s = None if watched.latency is None else watched.latency.slow_s
    if slow_s is not None:
        words = f"Redis takes {slow_s * 1000:.0f} ms for an answer; opening a session takes several."
        yield here(
            "redis_slow", "warning", f"{words} Do: see what loads it (`redis-cli --latency`, SLOWLOG), or the network."
        )
    if overload.sessions is not None:
        mark = (overload.calls or overload.sessions).mark
        yield here("overload", "critical", overload_words(overload.problem or "", mark))
    for url, problem in peers.problems.items():
        yield here("node_stranger", "critical", nodes_words({url: problem}), ("node", url))
    if watched.registry.is_stopping:
        words = "The node drains: it was told to stop, and takes no new sessions."
        yield here("node_draining", "info", f"{words} Do: nothing, if that was meant; it ends by itself.")


def _here(node: str, kind: str, severity: Severity, words: str, about: tuple[str, str] | None = None) -> Problem:
    what, _, do = words.partition(" Do: ")
    # Redis and the database are the same for all nodes: one line, with the nodes that have the trouble.
    common = kind.removesuffix("_slow")
    usual = (common, common) if common in ("redis", "database") else ("node", node)
    return Problem(kind, severity, about or usual, what, do, ("node", node))
