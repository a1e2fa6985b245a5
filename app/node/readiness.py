"""What keeps a node from serving and what it does without, in words for whoever is called at night: what is wrong, what
that costs, what to do."""

from collections.abc import Mapping

_REDIS_AWAY = (
    "Redis cannot be used ({problem}). Open sessions of this node go on; new ones, and those of other nodes, are "
    "refused with 503 until it answers. Do: see that Redis runs and that TRUNKLINE_REDIS_URL is right; `trunkline "
    "doctor` tries both from here."
)
_REDIS_OF_OTHERS = (
    "Redis cannot be used ({problem}), so that no other node finds this one's sessions, nor this one theirs. Do: give "
    "every node the same TRUNKLINE_SECRET_KEY, or this one a Redis of its own."
)
_REDIS_FORGETS = (
    "Redis may forget which node has which session ({problem}), and clients would get 404 for sessions that are there. "
    "Do: `redis-cli CONFIG SET maxmemory-policy noeviction`, and the same in its configuration."
)
_NODE = (
    "The node at {url} answers but does not work together with this one: {problem}. Sessions that it has get 503 here. "
    "Do: {advice}."
)
_DATABASE_AWAY = (
    "{problem}. Changes are refused with 503, and so are clients that this node has not just served; the others go on. "
    "Do: see that the database runs and that TRUNKLINE_DATABASE_URL is right; `trunkline doctor` tries it from here."
)
_DATABASE_READ_ONLY = "{problem}. Changes are refused with 503. Do: TRUNKLINE_DATABASE_URL must name the primary."
_UNKNOWN = (
    "Since its start this node has not reached Redis, so that no other would find its sessions. Do: see that Redis "
    "runs and that TRUNKLINE_REDIS_URL is right; `trunkline doctor` tries both from here."
)
_OVERLOADED = "{problem}. Open sessions stay. Do: {advice}."

_AGAINST_LOAD = {
    "loop_lag": (
        "see what uses the processor (`top` there); if it is this node, start another one: new sessions go to it"
    ),
    "memory": (
        "see who uses it (`GET /api/v1/tenants/T/processes`); end sessions, lower MAX_PROCESSES or the tenant's "
        "`processes`, or give the machine more"
    ),
    "descriptors": "raise the limit on open files (LimitNOFILE= in systemd, `ulimit -n`) and start the node again",
}
# By a word of the problem (`peers.client`).
_AGAINST_STRANGERS = {
    "SECRET_KEY": "give both the same TRUNKLINE_SECRET_KEY, and start again the one that had another",
    "release": "finish the upgrade: all nodes must be of one release",
    "clocks": "set the clocks of both machines by NTP",
}


def database_words(problem: str) -> str:
    """Of a database that does not answer, or takes no changes."""
    words = _DATABASE_READ_ONLY if "read-only" in problem else _DATABASE_AWAY
    return words.format(problem=problem[:1].upper() + problem[1:])


def routes_words() -> str:
    """Of a node that the others have not heard of yet."""
    return _UNKNOWN


def redis_words(problem: str, *, is_up: bool) -> str:
    """Of a Redis that is set up to forget, is others', or is away."""
    if is_up:
        return _REDIS_FORGETS.format(problem=problem)
    return (_REDIS_OF_OTHERS if "SECRET_KEY" in problem else _REDIS_AWAY).format(problem=problem)


def overload_words(problem: str, mark: str) -> str:
    """Of a node that refuses on purpose, and the mark that it has passed."""
    return _OVERLOADED.format(problem=problem[:1].upper() + problem[1:], advice=_AGAINST_LOAD[mark])


def nodes_words(problems: Mapping[str, str]) -> str:
    """Of other nodes that answer and cannot be worked with, by address."""
    return " ".join(
        _NODE.format(url=url, problem=problem, advice=_against(problem)) for url, problem in problems.items()
    )


def _against(problem: str) -> str:
    found = (advice for word, advice in _AGAINST_STRANGERS.items() if word in problem)
    return next(found, "look into the log of that node")
