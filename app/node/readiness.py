"""What /readyz says of a node that cannot serve, or lacks something, for whoever is on call: what is wrong, what that
means, and what to do."""

from collections.abc import Mapping

from app.cluster.redis import REFUSES

_CHECK_REDIS = "check that Redis runs and that TRUNKLINE_REDIS_URL is right; `trunkline doctor` tries both from here."

_AGAINST_LOAD = {
    "loop_lag": "see what uses the processor (`top`); if it is this node, start another one: it gets the new sessions",
    "memory": (
        "see who uses it (`GET /api/v1/tenants/T/processes`); end sessions, lower MAX_PROCESSES or the tenant's "
        "`processes`, or give the machine more"
    ),
    "descriptors": "raise the limit on open files (LimitNOFILE= in systemd, `ulimit -n`) and restart the node",
}
# By a word of the problem (`storage.health.failures`).
_AGAINST_STORAGE = {
    "is full": "free space there, or give the disk more; changes work again by themselves",
    "disk I/O": "read `dmesg`, and check the disk and its file system; then restart the node if it does not recover",
    "locked": "find the program that has the file open (`fuser -v trunkline.db`), and end it",
    "beside the database": "stop the node (SIGTERM: so it saves what it can), and start it again",
    "removed or replaced": "stop the node, put the right file there, start it again (docs/operations.md, Backup)",
    "damaged": "restore the backup (docs/operations.md)",
    "cannot be written": "let the gateway's user write the file and its folder; see `mount` too",
    "read-only": "TRUNKLINE_DATABASE_URL must name the primary",
    "lacks a table": "wait if a dump is being restored; else run `trunkline migrate` and check the user's permissions",
    "transaction_timeout": "raise it for this user or database to 20 s, or remove it",
    "the user or the password": "check both in TRUNKLINE_DATABASE_URL, and what the server allows them (pg_hba.conf)",
    "no database of this name": "check the name in TRUNKLINE_DATABASE_URL, and whether that server has it",
    "no connection left": "close connections of others, or raise that limit; a node needs up to 8",
    "holds a lock": "see in pg_stat_activity and pg_locks of its server what waits, and for whom",
    "processes or threads": "raise the limit, and restart the node",
}
# By a word of what Redis says itself.
_AGAINST_REDIS = {
    "maxmemory": "raise its maxmemory (docs/scaling.md has how much it needs), and see what else is stored there",
    "MISCONF": "free space on its disk, or switch persistence off, which the nodes do not need",
    "good replicas": "start its replicas again, or lower its min-replicas-to-write",
    "permissions": "allow its user all commands and keys of that database (`ACL SETUSER`)",
    "read only replica": "TRUNKLINE_REDIS_URL must name the master, or sentinels that know it",
}
# By a word of the problem (`peers.client`).
_AGAINST_STRANGERS = {
    "SECRET_KEY": "give both the same TRUNKLINE_SECRET_KEY, and restart the one that had another",
    "release": "finish the upgrade: all nodes must be of one release",
    "certificate": "have its certificate name that address, and its authority in SSL_CERT_FILE of this node",
    "clocks": "set the clocks of both machines by NTP",
}


def database_words(problem: str) -> str:
    """The database cannot be used."""
    wrong = f"{problem[:1].upper()}{problem[1:]}. Changes are refused with 503"
    if "read-only" not in problem:
        wrong += ", and so are clients that this node has not served in the last half minute; others go on"
    return f"{wrong}. Do: {_against_storage(problem)}."


def slow_words(slowness: str) -> str:
    """The database is used, but takes long."""
    return (
        f"{slowness}. Changes wait for it, and so do clients that this node has not served in the last half minute; "
        "others go on. Do: look at the load and the disk of the machine that it is on, and at the network between."
    )


def changes_words(problem: str) -> str:
    """The database is read, but changes fail."""
    wrong = f"{problem[:1].upper()}{problem[1:]}. Changes fail with 503; sessions and calls go on"
    return f"{wrong}. Do: {_against_storage(problem)}."


def _against_storage(problem: str) -> str:
    usual = (
        "check that the database runs and that TRUNKLINE_DATABASE_URL is right; `trunkline doctor` tries it from here"
    )
    return next((do for word, do in _AGAINST_STORAGE.items() if word in problem), usual)


def routes_words() -> str:
    """The other nodes do not know this one yet."""
    return (
        "This node has not reached Redis since its start, so other nodes would not find its sessions. "
        f"Do: {_CHECK_REDIS}"
    )


def redis_words(problem: str, *, is_up: bool) -> str:
    """Redis may drop routes, belongs to nodes with another key, refuses what it is asked, or does not answer."""
    advice = next((do for word, do in _AGAINST_REDIS.items() if word in problem), None)
    if is_up and problem.startswith(REFUSES):
        return (
            f"Redis cannot be used ({problem}). Open sessions of this node go on; new ones, and those of other nodes, "
            f"are refused with 503 until it takes commands. Do: {advice or 'see its log, and `trunkline doctor`'}."
        )
    if is_up:
        return (
            f"Redis may forget which node has which session ({problem}); clients would get 404 for sessions that still "
            "exist. Do: `redis-cli CONFIG SET maxmemory-policy noeviction`, and the same in its configuration."
        )
    if "SECRET_KEY" in problem:
        return (
            f"Redis cannot be used ({problem}): this node and the others do not find each other's sessions. Do: give "
            "every node the same TRUNKLINE_SECRET_KEY, or this one a Redis of its own."
        )
    return (
        f"Redis cannot be used ({problem}). Open sessions of this node go on; new ones, and those of other nodes, are "
        f"refused with 503 until it answers. Do: {_CHECK_REDIS if advice is None else advice + '.'}"
    )


def overload_words(problem: str, mark: str) -> str:
    """The node refuses sessions or calls since this mark was passed."""
    return f"{problem[:1].upper()}{problem[1:]}. Open sessions stay. Do: {_AGAINST_LOAD[mark]}."


def nodes_words(problems: Mapping[str, str]) -> str:
    """Other nodes, by address, answer but cannot work together with this one."""
    return " ".join(
        f"The node at {url} answers but cannot work with this one: {problem}. Requests for its sessions get 503 here. "
        f"Do: {next((do for word, do in _AGAINST_STRANGERS.items() if word in problem), 'read the log of that node')}."
        for url, problem in problems.items()
    )
