"""What /readyz says of a node that cannot serve, or lacks something, for whoever is on call: what is wrong, what that
means, and what to do."""

from collections.abc import Mapping

_CHECK_REDIS = "check that Redis runs and that TRUNKLINE_REDIS_URL is right; `trunkline doctor` tries both from here."

_AGAINST_LOAD = {
    "loop_lag": "see what uses the processor (`top`); if it is this node, start another one: it gets the new sessions",
    "memory": (
        "see who uses it (`GET /api/v1/tenants/T/processes`); end sessions, lower MAX_PROCESSES or the tenant's "
        "`processes`, or give the machine more"
    ),
    "descriptors": "raise the limit on open files (LimitNOFILE= in systemd, `ulimit -n`) and restart the node",
}
# By a word of the problem (`peers.client`).
_AGAINST_STRANGERS = {
    "SECRET_KEY": "give both the same TRUNKLINE_SECRET_KEY, and restart the one that had another",
    "release": "finish the upgrade: all nodes must be of one release",
    "certificate": "have its certificate name that address, and its authority in SSL_CERT_FILE of this node",
    "clocks": "set the clocks of both machines by NTP",
}


def database_words(problem: str) -> str:
    """The database does not answer, or takes no changes."""
    wrong = f"{problem[:1].upper()}{problem[1:]}. Changes are refused with 503"
    if "read-only" in problem:
        return f"{wrong}. Do: TRUNKLINE_DATABASE_URL must name the primary."
    return (
        f"{wrong}, and so are clients that this node has not served in the last half minute; others go on. Do: check "
        "that the database runs and that TRUNKLINE_DATABASE_URL is right; `trunkline doctor` tries it from here."
    )


def routes_words() -> str:
    """The other nodes do not know this one yet."""
    return (
        "This node has not reached Redis since its start, so other nodes would not find its sessions. "
        f"Do: {_CHECK_REDIS}"
    )


def redis_words(problem: str, *, is_up: bool) -> str:
    """Redis may drop routes, belongs to nodes with another key, or does not answer."""
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
        f"refused with 503 until it answers. Do: {_CHECK_REDIS}"
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
