"""Reads files that say what a gateway should have: every error with its file and line, and never a value."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from app.admin.schemas.fields import ELSEWHERE
from app.admin.schemas.tenants import TenantMembers
from app.cli.files import references
from app.cli.files.kinds import KINDS, Kind
from app.cli.files.text import read_document, read_text
from app.domain import is_name
from app.domain.resources.backends import HIDDEN
from app.errors import InvalidRequest
from app.protocol.openapi.document import is_a_name
from app.text.credentials import hidden
from app.text.meant import did_you_mean
from app.text.strict_yaml import Text, Unreadable, read
from app.text.terminal.text import printable

MAX_FILE_BYTES = 32 << 20
MAX_FILES = 1000
MAX_SHOWN = 20  # errors in one message
SUFFIXES = (".yaml", ".yml", ".json")
_SHAPES = ("list_type", "model_type", "dict_type")
_MEANT = {
    "finite_number": "a number", "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "model_type": "an object with members", "dict_type": "an object with members", "list_type": "a list",
    "string_type": "a text; write it in quotes",
}  # fmt: skip
_TOP = ("$schema", "version", "tenants")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One object of a file. `body` is what a POST sends, with its secrets; `shown` what the gateway would show, without
    them; `named` the members that the file names."""

    kind: Kind
    name: str
    body: Mapping[str, Any] = field(repr=False)
    shown: Mapping[str, Any]
    named: frozenset[str]
    where: str


@dataclass(slots=True)
class WantedTenant:
    """One tenant of the files. `sections` has those that a file names, even if they are empty."""

    name: str
    where: str
    members: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, dict[str, Wanted]] = field(default_factory=dict)


def read_files(paths: Sequence[str], environ: Mapping[str, str]) -> list[WantedTenant]:
    """The tenants of these files and folders, in order. `environ` is where `${env:NAME}` is looked up.

    Raises:
        InvalidRequest: a file cannot be read or used; the message has a line for each problem.
    """
    reading = _Reading(environ)
    for path in _files(paths):
        reading.add(path)
    reading.end()
    return list(reading.tenants.values())


def _files(paths: Sequence[str]) -> list[str]:
    found = list[str]()
    for path in paths:
        if path != "-" and os.path.isdir(path):
            inside = sorted(each for each in os.listdir(path) if each.endswith(SUFFIXES) and not each.startswith("."))
            if not inside:
                raise InvalidRequest(f"there is no file {', '.join(f'*{each}' for each in SUFFIXES)} in {path!r}")
            found += [os.path.join(path, each) for each in inside]
        else:
            found.append(path)
    if len(found) > MAX_FILES:
        raise InvalidRequest(f"these are {len(found)} files; at most {MAX_FILES} are read at once")
    real = ["-" if each == "-" else os.path.realpath(each) for each in found]
    if len(set(real)) < len(real):
        raise InvalidRequest("a file is given twice")
    return found


@dataclass(slots=True)
class _Reading:
    environ: Mapping[str, str]
    tenants: dict[str, WantedTenant] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        text = read_text(path, MAX_FILE_BYTES).removeprefix("\ufeff")
        if path.endswith(".json"):
            text = text.replace("\t", " ")  # JSON may be indented with tabs, YAML may not; in a text it has none
        name = "stdin" if path == "-" else path
        try:
            document = read(text)
        except Unreadable as error:
            self.problems.append(f"{name}:{error.line}: {error}")
            return
        folder = Path() if path == "-" else Path(path).parent
        _File(name, folder, document, self).add()

    def end(self) -> None:
        if not self.problems:
            return
        more = len(self.problems) - MAX_SHOWN
        shown = [printable(each) for each in self.problems[:MAX_SHOWN]]
        raise InvalidRequest(
            "\n  ".join(["the files cannot be used:", *shown, *([f"and {more} more"] if more > 0 else [])])
        )


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    folder: Path
    document: Text
    reading: _Reading

    def add(self) -> None:
        top = self.document.value
        if not self._is_object(top, (), "the file"):
            return
        self._require_known(top, _TOP, ())
        if top.get("version", 1) != 1 or isinstance(top.get("version"), bool):
            self._say(("version",), "this program reads version 1 of these files")
        if not isinstance(top.get("$schema", ""), str):
            self._say(("$schema",), "must be a text")
        tenants = top.get("tenants", {})
        if self._is_object(tenants, ("tenants",), "`tenants`"):
            for name, members in tenants.items():
                self._add_tenant(name, members)

    def _add_tenant(self, name: str, members: Any) -> None:
        path = ("tenants", name)
        members = {} if members is None else members  # `acme:` with nothing below
        if not is_name(name):
            self._say(path, "a tenant's name is lower-case letters, digits and hyphens, 63 at most")
        elif self._is_object(members, path, "a tenant"):
            sections = {kind.section for kind in KINDS}
            own = [*TenantMembers.model_fields]
            self._require_known(members, [*own, *sorted(sections)], path)
            tenant = self.reading.tenants.setdefault(name, WantedTenant(name, self._place(path)))
            self._add_own(tenant, {key: members[key] for key in own if key in members}, path)
            for kind in KINDS:
                if kind.section in members:
                    self._add_section(tenant, kind, members[kind.section], (*path, kind.section))

    def _add_own(self, tenant: WantedTenant, members: dict[str, Any], path: tuple[str, ...]) -> None:
        body = self._validated(TenantMembers, members, path)
        if body is None:
            return
        if body.reason and ("enabled" not in members or body.enabled):
            self._say((*path, "reason"), "a reason goes with `enabled: false`")
        for name, value in body.model_dump(mode="json", include=body.model_fields_set).items():
            if name in tenant.members:
                self._say((*path, name), f"another file has this for the tenant too, from {tenant.where} on")
            tenant.members[name] = value

    def _add_section(self, tenant: WantedTenant, kind: Kind, objects: Any, path: tuple[str, ...]) -> None:
        section = tenant.sections.setdefault(kind.section, {})
        objects = {} if objects is None else objects
        if not self._is_object(objects, path, f"`{kind.section}`"):
            return
        for name, members in objects.items():
            at = (*path, name)
            if name in section:
                self._say(at, f"this {kind.one} is in {section[name].where} too")
            elif self._is_object(members, at, f"a {kind.one}"):
                if kind.named_by in members:
                    self._say((*at, kind.named_by), f"the {kind.one} is named by its key, {name[:80]!r}")
                    continue
                if (wanted := self._object(kind, name, members, at)) is not None:
                    section[name] = wanted

    def _object(self, kind: Kind, name: str, members: dict[str, Any], at: tuple[str, ...]) -> Wanted | None:
        known = len(self.reading.problems)
        self._refuse_references(kind, members, at)
        body = {kind.named_by: name, **self._with_documents(kind, self._filled(kind, members, at), at)}
        if len(self.reading.problems) > known:
            return None
        model = self._validated(kind.body, body, at)
        if model is None:
            return None
        try:
            shown = kind.shown(model)
        except ValidationError as error:  # only together its members are wrong
            self._say_all(error, at, kind.answer)
            return None
        return Wanted(kind, name, body, shown, frozenset(members), self._place(at))

    def _filled(self, kind: Kind, members: dict[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
        """The members, with what references in secret ones name."""
        body = dict(members)
        for name in body.keys() - {*kind.secret_maps, *kind.secret_parts, *kind.secrets} if kind.has_references else ():
            body[name] = references.changed(body[name], references.unescaped)
        for name in kind.secret_parts:
            if isinstance(words := body.get(name), list):
                body[name] = self._parts_filled(words, (*at, name))
            elif name in body:
                body[name] = self._parts_filled([words], (*at, name))[0]
        for name in kind.secret_maps:
            if isinstance(body.get(name), dict):
                body[name] = {
                    key: self._one_filled(value, (*at, name, key), may_be_empty=name == "env")
                    for key, value in body[name].items()
                }
        for name in kind.secrets:
            if name in body:
                body[name] = self._one_filled(body[name], (*at, name))
        if isinstance(client := members.get(kind.signs_in), dict) and "client_secret" in client:
            secret = self._one_filled(client["client_secret"], (*at, kind.signs_in, "client_secret"))
            body[kind.signs_in] = {**body[kind.signs_in], "client_secret": secret}
        return body

    def _parts_filled(self, words: list[Any], at: tuple[str, ...]) -> list[Any]:
        """With what references name, if that is not shown: only what is recognised as a secret is hidden there."""
        if not all(isinstance(each, str) for each in words):
            return words
        found = [references.parts_filled(word, lambda one: str(self._one_filled(one, at))) for word in words]
        meant = hidden([references.parts_filled(word, lambda _: HIDDEN) for word in words])
        if hidden(found) != meant:
            self._say(at, "what a reference names would be shown there: it is no place that is known for a secret")
        return found

    def _one_filled(self, value: Any, at: tuple[str, ...], *, may_be_empty: bool = False) -> Any:
        if isinstance(value, str):
            try:
                return references.filled(value, self.folder, self.reading.environ, may_be_empty=may_be_empty)
            except InvalidRequest as error:
                self._say(at, str(error))
        return value

    def _with_documents(self, kind: Kind, body: dict[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
        named = [name for name in kind.documents if isinstance(body.get(name), str) and is_a_name(body[name])]
        return body | {name: self._document(body[name], (*at, name)) for name in named}

    def _document(self, path: str, at: tuple[str, ...]) -> str:
        try:
            return read_document(str(self.folder / os.path.expanduser(path)))
        except InvalidRequest as error:
            self._say(at, str(error))
            return path

    def _refuse_references(self, kind: Kind, members: Mapping[str, Any], at: tuple[str, ...]) -> None:
        """A value that answers and plans show must not become a secret."""
        if kind.has_references:
            for name, value in members.items():
                secret = (*kind.secret_maps, *kind.secret_parts, *kind.secrets)
                is_client = name == kind.signs_in and isinstance(value, dict)
                shown = {**value, "client_secret": None} if is_client else value
                if name not in secret and references.has_reference(str(shown)):
                    places = " and ".join(f"`{each}`" for each in secret)
                    self._say((*at, name), f"references stand in {places} only: everything else is shown to readers")

    def _validated(self, model: type[BaseModel], members: dict[str, Any], at: tuple[str, ...]) -> Any:
        try:
            return model.model_validate(members, context=ELSEWHERE)
        except ValidationError as error:
            self._say_all(error, at, model)
            return None

    def _say_all(self, error: ValidationError, at: tuple[str, ...], model: object) -> None:
        # Without the input: it may be a secret.
        errors = error.errors(include_input=False, include_url=False)
        found = [(_known_part(self.document, at, each["loc"]), each) for each in errors]
        inside = {where[:end] for where, each in found if each["type"] not in _SHAPES for end in range(len(where) + 1)}
        for where, each in found:
            if each["type"] not in _SHAPES or where not in inside:  # else it is of a branch that was not meant
                known = getattr(model, "model_fields", ()) if where[:-1] == at else ()  # not those of what is in it
                name = str(each["loc"][-1]) if each["loc"] else ""
                self._say(where, _words(each["type"], each["msg"], name, list(known)))

    def _is_object(self, value: Any, path: tuple[str, ...], what: str) -> bool:
        if not isinstance(value, dict):
            self._say(path, f"{what} has to be an object with members")
            return False
        return True

    def _require_known(self, members: Mapping[str, Any], known: Sequence[str], path: tuple[str, ...]) -> None:
        for name in members:
            if name not in known:
                self._say((*path, name), _unknown(name, known))

    def _place(self, path: tuple[str | int, ...]) -> str:
        return f"{self.name}:{self.document.line_of(path)}"

    def _say(self, path: tuple[str | int, ...], problem: str) -> None:
        shown = ".".join(str(each)[:80] for each in path)
        line = f"{self._place(path)}: " + (f"{shown}: {problem}" if shown else problem)
        if line not in self.reading.problems:
            self.reading.problems.append(line)


def _known_part(document: Text, at: tuple[str, ...], location: Sequence[str | int]) -> tuple[str | int, ...]:
    """The path of an error, without the names of branches that the validator puts between."""
    path: tuple[str | int, ...] = at
    for part in location:
        if (*path, part) in document.lines:
            path = (*path, part)
    return path


def _words(kind: str, message: str, name: str, known: Sequence[str]) -> str:
    if kind == "extra_forbidden":
        return _unknown(name, known)
    if kind == "missing":
        return f"`{name}` is missing"
    if kind in _MEANT:
        return f"must be {_MEANT[kind]}"
    return message.replace("Input should", "must", 1).replace("String should", "must", 1)


def _unknown(name: str, known: Sequence[str]) -> str:
    return f"there is no such member{did_you_mean(name, known)}"
