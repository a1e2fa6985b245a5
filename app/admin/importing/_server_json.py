"""One server from the MCP registry (`server.json`): its package becomes a command that downloads and runs it,
a remote a URL."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.admin.importing._entry import Entry, named, normalised
from app.admin.importing._placeholders import ASK, Values, environment, trimmed

# By type of package: the program that runs it, its arguments, and the form of an identifier. In the order in which they
# are taken; a container after a URL, as it needs an engine.
_RUNNERS = {
    "npm": ("npx", ("-y",), re.compile(r"(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*")),
    "pypi": ("uvx", (), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")),
    "oci": ("docker", ("run", "-i", "--rm"), re.compile(r"[a-z0-9][A-Za-z0-9._:@/-]*")),
}
_WITHOUT_ENGINE = ("npm", "pypi")
# Of what no command downloads and runs: what to do instead.
_BY_HAND = {
    "mcpb": "is a bundle, {identifier}: unpack it on each node, and import its manifest.json, with the folder as "
    "__dirname by " + ASK,
    "nuget": "is a NuGet package: install it on each node (`dotnet tool install --global {identifier}`), and register "
    "the program that it brings as `command`",
    "cargo": "is a crate: install it on each node (`cargo install {identifier}`), and register the program that it "
    "brings as `command`",
}
_OTHERWISE = "is packaged as {kind}: install it on each node, and register the program that it brings as `command`"
_SERVES_HTTP = "its package {identifier} serves HTTP: start it yourself, and register its address as `url`"
_ASKED_FOR = frozenset({"isRequired", "isSecret", "format", "choices", "placeholder", "valueHint"})
_OLDER = ("registry_type", "registry_name", "environment_variables", "package_arguments", "transport_type")
_OFFICIAL = "io.modelcontextprotocol.registry/official"
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]*")


def from_registry(server: Any, supplied: Mapping[str, str]) -> Entry:
    """The entry of the first package that a command can run, or of a remote."""
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return Entry("", "").refused("is not a server.json")
    source = server["name"]
    empty, notes = named(source, normalised(source.rpartition("/")[2]))
    if old := _older_form(server):
        return empty.refused(f"is of an older form of server.json (`{old}`): get it in the form of 2025-09-29 or later")
    status = official(server).get("status")
    if status == "deleted":
        return empty.refused("was withdrawn by its publisher")
    notes += ["its publisher calls it deprecated"] if status == "deprecated" else []
    refused = list[str]()
    for package in _in_order(server):
        try:
            taken = _remote if package is None else partial(_packaged, package)
            return taken(empty, server, Values(supplied), notes)
        except ValueError as error:
            refused.append(str(error))
    packages = _objects(server.get("packages"))
    refused += [_by_hand(package) for package in packages if not (_is_stdio(package) and _kind(package) in _RUNNERS)]
    return empty.refused(*(refused or ["has neither a stdio package nor a remote that can be reached by URL"]))


def _in_order(server: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """Its packages that a command can run, and None for its remotes where these are in turn."""
    packages = [each for each in _objects(server.get("packages")) if _is_stdio(each)]
    yield from (each for each in packages if _kind(each) in _WITHOUT_ENGINE)
    yield from [None] if _known_remotes(server) else []
    yield from (each for each in packages if _kind(each) == "oci")


def official(server: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the registry says of this version."""
    meta = server.get("_meta")
    found = meta.get(_OFFICIAL) if isinstance(meta, dict) else None
    return found if isinstance(found, dict) else {}


def _packaged(package: dict[str, Any], empty: Entry, _: dict[str, Any], values: Values, notes: Sequence[str]) -> Entry:
    """Raises ValueError: nothing can be started so."""
    command, before, after = _runner(package, values)
    env, problems = environment(_inputs(package.get("environmentVariables"), values), values)
    if command == "docker":
        # By name: a value in an argument is there for everybody on the machine to read.
        before += [word for name in env for word in ("-e", name)]
    else:
        if not package.get("version"):
            notes = [*notes, "no version: each start of a process uses the newest one"]
        if package.get("registryBaseUrl"):
            notes = [*notes, "downloaded from the package index that is configured here, not from the one it names"]
    members = {"name": empty.name, "command": command, "args": [*before, *after], "env": env, "enabled": True}
    found = (*empty.problems, *problems, *values.problems())
    return replace(empty, members=members, problems=found, notes=(*notes, *values.notes))


def _kind(package: Mapping[str, Any]) -> str:
    return str(package.get("registryType"))


def _by_hand(package: Mapping[str, Any]) -> str:
    kind, identifier = ascii(_kind(package))[1:-1], ascii(str(package.get("identifier")))[1:-1]
    words = _BY_HAND.get(kind, _OTHERWISE if kind not in _RUNNERS else _SERVES_HTTP)
    return words.format(kind=kind, identifier=identifier)


def _remote(empty: Entry, server: dict[str, Any], values: Values, notes: Sequence[str]) -> Entry:
    """The entry of the first remote; it is reached by URL. Raises ValueError: a value that it does not allow."""
    remotes = _known_remotes(server)
    # If it has several, Streamable HTTP is what later revisions know.
    remote = next((each for each in remotes if each["type"] == "streamable-http"), remotes[0])
    headers = {name: trimmed(value) for name, value in _inputs(remote.get("headers"), values).items()}
    variables = remote.get("variables")
    url = _substituted(str(values.fill(remote["url"])), variables if isinstance(variables, dict) else {}, values)
    url = trimmed(url)
    members = {"name": empty.name, "url": url, "transport": remote["type"], "headers": headers, "enabled": True}
    unnamed = ["has a variable in its URL that it does not describe"] if _VARIABLE.search(url) else []
    found = (*empty.problems, *unnamed, *values.problems())
    return replace(empty, members=members, problems=found, notes=(*notes, *values.notes))


def _known_remotes(server: dict[str, Any]) -> list[dict[str, Any]]:
    remotes = _objects(server.get("remotes"))
    return [each for each in remotes if each.get("type") in ("streamable-http", "sse") and each.get("url")]


def _older_form(server: dict[str, Any]) -> str | None:
    """A member that tells that the file is older than the names in camel case, with which nothing would be found."""
    inside = [*_objects(server.get("packages")), *_objects(server.get("remotes"))]
    return next((name for each in inside for name in _OLDER if name in each), None)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_stdio(package: dict[str, Any]) -> bool:
    transport = package.get("transport")
    return transport is None or (isinstance(transport, dict) and transport.get("type") == "stdio")


def _runner(package: dict[str, Any], values: Values) -> tuple[str, list[str], list[str]]:
    """The command, what stands before the package, and the package with what is behind it.

    Raises:
        ValueError: these are not the name and version of a package, or a value that it does not allow.
    """
    command, own, identifier_pattern = _RUNNERS[_kind(package)]
    identifier, version = str(package.get("identifier")), str(package.get("version") or "")
    if not identifier_pattern.fullmatch(identifier):
        raise ValueError(f"{identifier!a} is not the name of a package")
    if version and not _VERSION.fullmatch(version):
        raise ValueError(f"{version!a} is not a version")
    runtime = _arguments(package.get("runtimeArguments"), values)
    if command == "docker":
        before = [*own, *(each for each in runtime if each not in own)]
        name = _image(identifier, version, package.get("registryBaseUrl"))
    else:
        before = [*(each for each in own if each not in runtime), *runtime]
        name = f"{identifier}@{version}" if version else identifier
    return command, before, [name, *_arguments(package.get("packageArguments"), values)]


def _image(identifier: str, version: str, registry: Any) -> str:
    """The name of an image; older forms have its parts in members of their own."""
    found = re.match(r"https?://([\w.:-]+)", registry, re.ASCII) if isinstance(registry, str) else None
    host = found[1] if found else ""
    is_named = not host or host == "docker.io" or identifier.startswith(host)
    name = identifier if is_named else f"{host}/{identifier}"
    return name if not version or ":" in name.rpartition("/")[2] else f"{name}:{version}"


def _arguments(inputs: Any, values: Values) -> list[str]:
    arguments = list[str]()
    for each in _objects(inputs):
        name, is_flag = str(each.get("name") or each.get("valueHint") or ""), each.get("type") == "named"
        value = _value(each, name, values)
        if is_flag and value is None and not _ASKED_FOR.intersection(each):
            arguments.append(name)  # a switch without a value
        elif value is not None:
            is_repeated = each.get("isRepeated") is True
            if is_repeated:
                values.notes.append(f"{ascii(name)[1:-1]} may be given several times: one value in each line")
            for one in value.splitlines() if is_repeated else [value]:
                # With `=` for long options, so that a value is never taken for an option.
                option = [] if not is_flag else [f"{name}={one}"] if name.startswith("--") else [name, one]
                arguments += option or [one]
    return arguments


def _inputs(inputs: Any, values: Values) -> dict[str, str]:
    named = ((str(each.get("name")), each) for each in _objects(inputs))
    return {name: value for name, each in named if (value := _value(each, name, values)) is not None}


def _value(described: dict[str, Any], name: str, values: Values) -> str | None:
    """The publisher's fixed value, else the supplied one, else the default. Notes a required one that is missing."""
    if isinstance(described.get("value"), str):
        variables = described.get("variables")
        text: str = values.fill(described["value"])
        return _substituted(text, variables if isinstance(variables, dict) else {}, values)
    found = values.get(name)
    if found is None and isinstance(described.get("default"), str | int | float):
        found = values.text(described["default"])
    if found is None and described.get("isRequired"):
        values.need(name)
    choices = described.get("choices")
    if found is not None and isinstance(choices, list) and choices and found not in choices:
        raise ValueError(f"{ascii(name)[1:-1]} must be one of {ascii(', '.join(map(str, choices)))[1:-1]}")
    return found


def _substituted(text: str, variables: dict[str, Any], values: Values) -> str:
    def one(found: re.Match[str]) -> str:
        described = variables.get(found[1])
        if not isinstance(described, dict):
            return found[0]
        # According to the schema, variables have no variables of their own.
        return values.fitting(_value({**described, "variables": None}, found[1], values) or "")

    return _VARIABLE.sub(one, text)
