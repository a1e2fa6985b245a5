"""The servers of projects, which Claude Code keeps in one file: each under the path of its project."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from app.admin.importing._entry import definition, normalised, numbered


class OfProject(NamedTuple):
    """A server of one project, or the same one of several."""

    source: str
    name: str
    entry: Any
    note: str


def of_projects(document: Mapping[str, Any], of_user: Collection[tuple[str, str]]) -> list[OfProject]:
    """Each server once, however many projects have it. Different servers of one name are told apart by the folders of
    their projects; those of `of_user` (names and definitions) keep their names, and are not named again."""
    taken = {normalised(name) for name, _ in of_user}
    found = list[OfProject]()
    for source, places in _by_name(document, of_user).items():
        wanted = normalised(source)
        is_clear = len(places) == 1 and wanted not in taken
        for entry, paths in places.values():
            name = wanted if is_clear else _apart(source, paths[0], taken)
            taken.add(name)
            found.append(OfProject(source, name, entry, _note(paths)))
    return found


def _by_name(
    document: Mapping[str, Any], of_user: Collection[tuple[str, str]]
) -> dict[str, dict[str, tuple[Any, list[str]]]]:
    """By name, and by what they are: the servers, with the paths of their projects."""
    found = defaultdict[str, dict[str, tuple[Any, list[str]]]](dict)
    projects = document.get("projects")
    for path, project in projects.items() if isinstance(projects, dict) else ():
        servers = project.get("mcpServers") if isinstance(project, dict) else None
        for source, entry in servers.items() if isinstance(servers, dict) else ():
            is_off = isinstance(entry, dict) and source in _switched_off(project)
            server = {**entry, "disabled": True} if is_off else entry
            if (source, words := definition(server)) not in of_user:
                found[source].setdefault(words, (server, []))[1].append(path)
    return found


def _switched_off(project: Mapping[str, Any]) -> Collection[str]:
    names = project.get("disabledMcpServers")
    return names if isinstance(names, list) else ()


def _apart(source: str, path: str, taken: Collection[str]) -> str:
    """The name with so many of the folders that nobody has it; or with a number."""
    folders = [each for each in path.replace("\\", "/").split("/") if each]
    for count in range(1, len(folders) + 1):
        if (name := normalised("-".join([source, *folders[-count:]]))) not in taken:
            return name
    return numbered(normalised(source), taken)


def _note(paths: list[str]) -> str:
    shown = ascii(", ".join(paths[:3]))[1:-1]
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"of the project{'s' if len(paths) > 1 else ''} {shown}{more}"
