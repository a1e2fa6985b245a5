"""Where this node gets packages: what its settings say, else npm's and uv's own configuration, else pip's.

Of hosts only these are reached (`RegistryRule`), and of addresses that are not public only theirs. Credentials are in
what is handed to npm and uv in their sandbox, and nowhere else. Reads the disk, starts npm: to be called in a thread.
"""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from app.domain.resources.destinations import Destination
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Network

Place = tuple[str, int]  # host and port
MAX_OTHER_HOSTS = 4  # that a registry's answers name for its files
_MAX_CONFIGURATION = 64 << 10
_ASK_S = 60.0
_PORTS = {"http": 80, "https": 443}
_variable = re.compile(r"\$\{(\w+)\}")
_OF_UV = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT")


class ToolMissing(Exception):
    """This node has not what installs such packages. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one kind of packages comes from. `files`: texts that the tool is to find, by name; `env`: its variables,
    with `{files}` for their folder; `places`: the registries; `plain`: those of them without TLS; `read`: folders of
    this machine that are one. `cafile`: the only authorities that the tool is configured to believe.
    `has_default`: the tool's own registry is one as well, which it alone knows."""

    places: frozenset[Place]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    plain: frozenset[Place] = frozenset()
    cafile: str = ""
    has_default: bool = False

    def also(self, destinations: Iterable[str]) -> "Source":
        """With more registries, as HOST:PORT."""
        found = {(host, int(port)) for host, _, port in (each.rpartition(":") for each in destinations)}
        return replace(self, places=self.places | found, has_default=False)


def npm_program() -> str:
    """Raises ToolMissing."""
    if (found := shutil.which("npm")) is None:
        raise ToolMissing("this node has no `npm` on its PATH: install Node.js with npm there, and restart the node")
    return found


def uv_program() -> str:
    """Raises ToolMissing."""
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - only where something is installed

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        if (found := shutil.which("uv")) is not None:
            return found
    raise ToolMissing("this node has no `uv`: install the gateway with its dependencies (pip install trunkline)")


def of_npm(registry: str | None, environ: Mapping[str, str]) -> Source:
    """`registry`: the setting. Raises ToolMissing."""
    command = [npm_program(), "config", "ls", "--long", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_ASK_S, check=True, stdin=subprocess.DEVNULL)
        told = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"`npm config ls` does not work on this node: {error}") from None
    lines = [_text(told.get(each)) for each in ("globalconfig", "userconfig")]
    urls = [str(told.get(name)) for name in told if name == "registry" or str(name).endswith(":registry")]
    if registry:
        plain, *own = _with_npm_credentials(registry)
        lines, urls = [*lines, f"registry={plain}", *own], [plain, *(each for each in urls if each != told["registry"])]
    text = "\n".join(lines) + "\n"
    env = {name: environ[name] for name in _variable.findall(text) if name in environ}
    env |= {name: value for name, value in environ.items() if name.lower().startswith("npm_config_")}
    env = {name: value for name, value in env.items() if not (registry and name.lower() == "npm_config_registry")}
    own_files = {"npm_config_userconfig": "{files}/npmrc", "npm_config_globalconfig": "{files}/none"}
    places, read, without_tls = _places(urls)
    cafile = str(told.get("cafile") or "")
    cafile = cafile if os.path.isfile(cafile) else ""
    read += (cafile,) if cafile else ()
    files = {"npmrc": text, "none": ""}
    return Source(places, {**env, **own_files, "npm_config_noproxy": ""}, files, read, without_tls, cafile)


def _with_npm_credentials(url: str) -> Iterator[str]:
    """The address without what signs in there, and the line of a .npmrc that does."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=host))
    if parts.password is not None:
        user, password = unquote(parts.username or ""), unquote(parts.password)
        where = f"//{host}{parts.path.rstrip('/')}/"
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        yield f"{where}:_auth={basic}" if user else f"{where}:_authToken={password}"


def of_pypi(index: str | None, environ: Mapping[str, str], home: Path) -> Source:
    """`index`: the setting."""
    if index:
        env = {"UV_DEFAULT_INDEX": index}
        places, read, plain = _places([index])
        return Source(places, {**env, "UV_NO_CONFIG": "1"}, {}, read, plain)
    env = {name: value for name, value in environ.items() if name.startswith(_OF_UV)}
    text = _configuration_of_uv(environ, home)
    urls = [each for name, value in env.items() if name != "UV_INDEX_STRATEGY" for each in value.split()]
    urls += _urls_in(text)
    if not urls:
        env, urls = _of_pip(environ, home)
    places, read, plain = _places(_without_name(each) for each in urls)
    files = {"uv.toml": text} if text else {}
    env |= {"UV_CONFIG_FILE": "{files}/uv.toml"} if text else {"UV_NO_CONFIG": "1"}
    has_own = bool(env.keys() & {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} or _replaces_default(text))
    return Source(places, env, files, read, plain, has_default=not has_own)


def _without_name(url: str) -> str:
    """uv knows indexes as NAME=URL too."""
    name, _, rest = url.partition("=")
    return rest if rest and "/" not in name else url


def _replaces_default(text: str) -> bool:
    told = _toml(text)
    indexes = told.get("index")
    is_marked = isinstance(indexes, list) and any(isinstance(each, dict) and each.get("default") for each in indexes)
    return is_marked or "index-url" in told or "no-index" in told


def _configuration_of_uv(environ: Mapping[str, str], home: Path) -> str:
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "uv/uv.toml")
    return next(
        (text for each in (environ.get("UV_CONFIG_FILE"), user, "/etc/uv/uv.toml") if (text := _text(each))), ""
    )


def _toml(text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only where something is installed

    try:
        return tomllib.loads(text)
    except ValueError:
        return {}


def _urls_in(text: str) -> list[str]:
    told = _toml(text)
    parts = [told, told.get("pip")]
    found = list[str]()
    for each in (part for part in parts if isinstance(part, dict)):
        indexes = each.get("index")
        found += [str(one.get("url")) for one in indexes if isinstance(one, dict)] if isinstance(indexes, list) else []
        for name in ("index-url", "extra-index-url", "find-links"):
            value = each.get(name)
            found += [value] if isinstance(value, str) else [str(one) for one in value or ()]
    return found


def _of_pip(environ: Mapping[str, str], home: Path) -> tuple[dict[str, str], list[str]]:
    """What pip is configured to use, as variables of uv."""
    import configparser  # noqa: PLC0415 - only where something is installed

    parser = configparser.RawConfigParser(strict=False)
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip/pip.conf")
    for path in ("/etc/pip.conf", home / ".pip/pip.conf", user, environ.get("PIP_CONFIG_FILE")):
        try:
            parser.read_string(_text(path))
        except configparser.Error:
            continue
    env, urls = dict[str, str](), list[str]()
    for name, its in (
        ("index-url", "UV_DEFAULT_INDEX"), ("extra-index-url", "UV_INDEX"), ("find-links", "UV_FIND_LINKS"),
    ):  # fmt: skip
        told = environ.get(f"PIP_{name.upper().replace('-', '_')}") or parser.get("global", name, fallback="") or ""
        if words := told.split():
            env[its] = ("," if its == "UV_FIND_LINKS" else " ").join(words)
            urls += words
    return {**env, **({"UV_INDEX_STRATEGY": "unsafe-best-match"} if env else {})}, urls


def _text(path: object) -> str:
    """Of a file of configuration; empty if there is none."""
    try:
        with open(str(path), encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CONFIGURATION) if path else ""
    except OSError:
        return ""


def _places(urls: Iterable[str]) -> tuple[frozenset[Place], tuple[str, ...], frozenset[Place]]:
    """The hosts of addresses, the folders of those that are on this machine, and which hosts are spoken to without
    TLS."""
    places, folders, plain = set[Place](), set[str](), set[Place]()
    for url in urls:
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            continue
        if parts.scheme in ("http", "https") and parts.hostname:
            place = (parts.hostname.lower(), port)
            places.add(place)
            plain.update([place] if parts.scheme == "http" else [])
        elif parts.scheme in ("file", "") and (path := unquote(parts.path)).startswith("/") and os.path.isdir(path):
            folder = os.path.realpath(path)  # an index in `simple` has its files beside that
            folders.add(os.path.dirname(folder) if os.path.basename(folder) == "simple" else folder)
    return frozenset(places), tuple(sorted(folders)), frozenset(plain)


class RegistryRule:
    """Only registries: those that are configured, and by https up to MAX_OTHER_HOSTS more, which their answers name for
    files. Nobody asks but npm or uv, which run nothing of a package: what they ask for is what a registry has named.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = frozenset(places)
        self._others = set[str]()

    async def permit(self, outgoing: Outgoing) -> Sequence[Destination]:
        host = str(outgoing.host)
        if (host, outgoing.port) in self._places:
            return ()
        if outgoing.port != _PORTS["https"] or not isinstance(outgoing.host, str):
            raise Refused(Reason.RULE, f"{outgoing.destination} is no registry that this node is configured to use")
        if len(self._others | {host}) > MAX_OTHER_HOSTS:
            raise Refused(Reason.RULE, f"{outgoing.destination}: the registry names files on too many hosts")
        self._others.add(host)
        return ()


def addresses_of(places: Iterable[Place]) -> tuple[Network, ...]:
    """Of configured registries: these may be reached although they are not public. Blocks."""
    return tuple(ip_network(each) for host in {host for host, _ in places} for each in sorted(_addresses(host)))


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(each[4][0]).partition("%")[0] for each in found}
