"""One server from the MCP registry (`server.json`): its package becomes a command that downloads and runs it,
a remote a URL."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.admin.importing._entry import Entry, named, normalised
from app.admin.importing._placeholders import Values, environment, trimmed

# By type of package: the program that runs it, its arguments, and the form of an identifier.
_RUNNERS = {
    "npm": ("npx", ("-y",), re.compile(r"(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*")),
    "pypi": ("uvx", (), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")),
}
_ASKED_FOR = frozenset({"isRequired", "isSecret", "format", "choices", "placeholder", "valueHint"})
_OLDER = ("registry_type", "registry_name", "environment_variables", "package_arguments", "transport_type")
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]*")


def from_registry(server: Any, supplied: Mapping[str, str]) -> Entry:
    """The entry of the first package of a supported type."""
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return Entry("", "").refused("is not a server.json")
    source = server["name"]
    empty, notes = named(source, normalised(source.rpartition("/")[2]))
    if old := _older_form(server):
        return empty.refused(f"is of an older form of server.json (`{old}`): get it in the form of 2025-09-29 or later")
    packages = [each for each in _objects(server.get("packages")) if _is_stdio(each)]
    package = next((each for each in packages if str(each.get("registryType")) in _RUNNERS), None)
    if package is None:
        if packages and not _known_remotes(server):
            kinds = ", ".join(sorted({ascii(str(each.get("registryType")))[1:-1] for each in packages}))
            return empty.refused(f"is packaged as {kinds}: only npm and pypi packages can be imported")
        return _remote(empty, _known_remotes(server), Values(supplied), notes)
    values = Values(supplied)
    try:
        command, args = _runner(package, values)
        env, problems = environment(_inputs(package.get("environmentVariables"), values), values)
    except ValueError as error:
        return empty.refused(str(error))
    if not package.get("version"):
        notes.append("no version: the newest one of now is installed, and stays")
    if package.get("registryBaseUrl"):
        notes.append("installed from the registry that the node is configured to use, not from the one it names")
    members = {"name": empty.name, "command": command, "args": args, "env": env, "enabled": True}
    found = (*empty.problems, *problems, *values.problems())
    return replace(empty, members=members, problems=found, notes=(*notes, *values.notes))


def _remote(empty: Entry, remotes: list[dict[str, Any]], values: Values, notes: list[str]) -> Entry:
    """The entry of the first remote; it is reached by URL."""
    if not remotes:
        return empty.refused("has neither a stdio package nor a remote that can be reached by URL")
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


def _runner(package: dict[str, Any], values: Values) -> tuple[str, list[str]]:
    command, own, identifier_pattern = _RUNNERS[package["registryType"]]
    identifier, version = str(package.get("identifier")), str(package.get("version") or "")
    if not identifier_pattern.fullmatch(identifier):
        raise ValueError(f"{identifier!a} is not the name of a package")
    if version and not _VERSION.fullmatch(version):
        raise ValueError(f"{version!a} is not a version")
    runtime = _arguments(package.get("runtimeArguments"), values)
    wanted = [each for each in own if each not in runtime] + runtime
    return command, [
        *wanted, f"{identifier}@{version}" if version else identifier,
        *_arguments(package.get("packageArguments"), values),
    ]  # fmt: skip


def _arguments(inputs: Any, values: Values) -> list[str]:
    arguments = []
    for each in _objects(inputs):
        name, is_flag = str(each.get("name") or each.get("valueHint") or ""), each.get("type") == "named"
        value = _value(each, name, values)
        if is_flag and value is None and not _ASKED_FOR.intersection(each):
            arguments.append(name)  # a switch without a value
        elif is_flag and value is not None:
            # With `=` for long options, so that a value is never taken for an option.
            arguments += [f"{name}={value}"] if name.startswith("--") else [name, value]
        elif value is not None:
            arguments.append(value)
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
    return found


def _substituted(text: str, variables: dict[str, Any], values: Values) -> str:
    def one(found: re.Match[str]) -> str:
        described = variables.get(found[1])
        if not isinstance(described, dict):
            return found[0]
        # According to the schema, variables have no variables of their own.
        return values.fitting(_value({**described, "variables": None}, found[1], values) or "")

    return _VARIABLE.sub(one, text)
