"""What a server will need that no sandbox gives unasked: addresses and files that its definition names."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PORTS = {
    "http": 80, "https": 443, "ws": 80, "wss": 443, "postgres": 5432, "postgresql": 5432, "mysql": 3306,
    "mariadb": 3306, "mongodb": 27017, "redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671,
    "mssql": 1433, "sqlserver": 1433,
    "clickhouse": 8123, "bolt": 7687, "neo4j": 7687, "ldap": 389, "ldaps": 636, "smtp": 25, "imap": 143, "imaps": 993,
}  # fmt: skip
_ADDRESS = re.compile(
    r"(?a)\b([a-z][a-z0-9]{1,20})(?:\+[a-z0-9]{1,20})?://(?:[^\s/?#@\"'<>]{0,1024}@)*(\[[0-9a-f:.]{2,45}\]|[\w.-]{1,253})"
    r"(?::([0-9]{1,5}))?(?=[/?#,\s\"'<>]|$)",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:^|(?<==))(/[^\s,:;*?\"'<>|]+)")
_RELATIVE = re.compile(r"(?a)(?:^|(?<==))(\.{1,2}/[^\s,:;*?\"'<>|]+|[\w.-][\w@./-]*\.(?:py|[cm]?js|ts|sh|jar))$")


def needs(members: Mapping[str, Any]) -> list[str]:
    """In words, each once. Of a variable only its name is said: its value may be a secret."""
    found = list[str]()
    for word in _words(members):
        found += [f"network: {place}" for place in _addresses(word)]
    if not members.get("url"):
        env = members.get("env")
        for name, value in env.items() if isinstance(env, Mapping) else ():
            found += [f"network: the address in {ascii(name)[1:-1]}"] if any(_addresses(str(value))) else []
        for word in _words(members):
            found += [f"file: {ascii(path)[1:-1]}" for path in _PATH.findall("" if "://" in word else word)]
        if not str(members.get("cwd") or "").startswith("/"):
            words = (str(members.get("command")), *_words(members))
            relative = [path for word in words if "://" not in word for path in _RELATIVE.findall(word)]
            found += [f"file: {ascii(path)[1:-1]} (write where it is on the gateway)" for path in relative]
    return list(dict.fromkeys(found))


def _words(members: Mapping[str, Any]) -> Iterator[str]:
    args = members.get("args")
    for each in (members.get("url"), *(args if isinstance(args, list) else ()), members.get("cwd")):
        if isinstance(each, str):
            yield each


def _addresses(text: str) -> Iterator[str]:
    """Host and port of each address in a text, as far as its scheme has a usual port or it names one."""
    for scheme, host, named in _ADDRESS.findall(text):
        port = int(named or _PORTS.get(scheme.lower(), 0))
        if 0 < port < 1 << 16:
            yield f"{host}:{port}"
