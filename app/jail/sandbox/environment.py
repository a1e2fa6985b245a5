"""The environment of a process: where it finds programs, the interpreters of scripts among them, its proxy, and the
certificate authorities that it is to believe."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.domain import HOME_WORD, BackendSpec
from app.domain.resources.backends import PROXY_PORT

_PROGRAMS = {"npm": "node_modules/.bin", "pypi": "bin"}  # in the folder of a package
NO_PROXY = "localhost,127.0.0.1,::1"

# Of Debian and Alpine, of Fedora, of openSUSE.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
)  # fmt: skip

_OF_AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
AUTHORITIES = "authorities.pem"

_MAX_LINKS = 40  # as in the kernel
_HEAD_BYTES = 4096
# What pip and uv write where the path of the interpreter is too long for `#!` or has a space in it.
_shell_header = re.compile(rb"#!/bin/sh\n'''exec' +([^\n]+)").match


def environment_of(spec: BackendSpec, home: str, tmpdir: str) -> dict[str, str]:
    """The environment of one process: of the gateway's own only PATH. The spawner adds its marker. Reads the disk: for
    a thread."""
    declared = {name: value.replace(HOME_WORD, home) for name, value in spec.env.items()}
    return {"PATH": search_path(spec), "HOME": home, "TMPDIR": tmpdir, "LANG": "C.UTF-8", **declared}


def search_path(spec: BackendSpec) -> str:
    """The PATH: what it declares, else the gateway's own, after the directory in which a script's interpreter is beside
    it, or the programs of its package. Reads the disk: for a thread."""
    if "PATH" in spec.env:
        return spec.env["PATH"]
    path = os.environ.get("PATH", os.defpath)
    if spec.package is not None and spec.installed:
        return f"{spec.installed}/{_PROGRAMS[spec.package.registry]}:{path}"
    program = os.path.join(spec.cwd or "", spec.command)
    beside = interpreter_beside(program) if "/" in spec.command and os.path.isabs(program) else None
    return path if beside is None else f"{beside}:{path}"


def proxy_environment(port: int = PROXY_PORT, bundles: Iterable[str] = BUNDLES) -> dict[str, str]:
    """For a process whose listener is at this port of its loopback.

    Where the machine has a bundle of certificate authorities, programs that bring their own use that one.
    """
    http = f"http://127.0.0.1:{port}"
    # Not socks5h: httpx, which many servers use, would not start without a package that few have.
    values = {"http_proxy": http, "https_proxy": http, "all_proxy": http, "no_proxy": NO_PROXY}
    variables = {**values, **{name.upper(): value for name, value in values.items()}, "NODE_USE_ENV_PROXY": "1"}
    bundle = next((each for each in bundles if Path(each).is_file()), None)
    if bundle is not None:
        variables |= dict.fromkeys(_OF_AUTHORITIES, bundle)
    return variables


def authorities_environment(file: str) -> dict[str, str]:
    """For a process that is to believe these: OpenSSL, Go and most others, requests, Node; curl and git."""
    return dict.fromkeys((*_OF_AUTHORITIES, "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"), file)


def write_authorities(directory: Path, own: str, bundles: Iterable[str] = BUNDLES) -> str:
    """A file with the certificate authorities of the machine and these, in PEM; its path. An earlier one is replaced at
    once, as processes of other nodes may read it. Raises OSError."""
    bundle = next((each for each in bundles if Path(each).is_file()), None)
    known = "" if bundle is None else Path(bundle).read_text(errors="replace")
    path = directory.resolve() / AUTHORITIES
    written = path.with_name(f"{AUTHORITIES}.{os.getpid()}")
    try:
        written.write_text(f"{known}\n{own}")
        written.chmod(0o644)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)
    return str(path)


def chain(path: str) -> Iterator[str]:
    """A program's path, and every path that it links to."""
    for _ in range(_MAX_LINKS):
        yield path
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return


def interpreter_of(script: str) -> tuple[str | None, bool]:
    """The program that runs it, as its `#!` line names it, and whether `env` has to look for that; None if it is no
    script or cannot be read."""
    try:
        with open(script, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:  # a program may be executable and not readable
        return None, False
    if not head.startswith(b"#!"):
        return None, False
    wrapped = _shell_header(head)
    words = _words(wrapped[1] if wrapped else head[2:].partition(b"\n")[0])
    is_env = bool(words) and os.path.basename(words[0]) == "env"
    if is_env:
        words = [each for each in words[1:] if not each.startswith("-") and "=" not in each]
    return (words[0] if words else None), is_env


def interpreter_beside(program: str) -> str | None:
    """The directory of a program, if its interpreter is there too and `env` is to find it: of nvm, where every version
    has its own programs, only a user's shell knows which directory that is."""
    name, is_env = interpreter_of(program)
    if name is None or not is_env or "/" in name:
        return None
    directories = (os.path.dirname(each) for each in chain(program))
    return next((each for each in directories if os.access(f"{each}/{name}", os.X_OK)), None)


def _words(line: bytes) -> list[str]:
    try:
        return shlex.split(line.decode(errors="surrogateescape"))
    except ValueError:
        return []
