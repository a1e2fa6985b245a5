"""…/backends:import: the servers of a client's configuration become backends, looked at first."""

from collections.abc import Sequence

import anyio.to_thread
from fastapi import APIRouter

from app.admin.context import Access, MayRegister
from app.admin.entries import body_of, validated
from app.admin.idempotency import ONCE
from app.admin.resources.backends import register
from app.admin.route import AdminRoute
from app.admin.schemas.imports import ImportAnswer, ImportBody, ImportedEntry
from app.errors import GatewayError, InvalidRequest, StorageUnavailable
from app.http.problems import responses
from app.importing import ASK, FORMATS, Entry, looks_like_toml, parse, settle

router = APIRouter(route_class=AdminRoute, tags=["backends"])

_PAGE = 200


@router.post("", dependencies=[ONCE], responses=responses(409))
async def import_backends(access: MayRegister, body: ImportBody) -> ImportAnswer:
    """Says which backends a file of MCP servers would give; with `apply` it makes them, one by one.

    What cannot be made is skipped, and the others are made: the answer is 200 either way. Nothing is overwritten.
    """
    # In a thread: TOML of this size takes longer than the event loop should wait.
    entries = await anyio.to_thread.run_sync(_read, body)
    entries = settle(entries, await _taken(access))
    if body.apply:
        entries = await _made(access, entries)
    return ImportAnswer(applied=body.apply, entries=[_shown(entry, applied=body.apply) for entry in entries])


def _read(body: ImportBody) -> list[Entry]:
    try:
        entries = parse(body.document, is_toml=looks_like_toml(body.document), supplied=body.env)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}; known formats are {FORMATS}", field="document") from None
    return [validated(entry) for entry in entries]


async def _taken(access: Access) -> set[str]:
    names, last = set[str](), ""
    while page := await access.admin.backends.list(access.tenant, after=last, limit=_PAGE):
        last = page[-1].name
        names.update(spec.name for spec in page)
    return names


async def _made(access: Access, entries: Sequence[Entry]) -> list[Entry]:
    """Makes those without problems; which could not be made has one then.

    Raises:
        StorageUnavailable: the database is away, and nothing was made yet.
    """
    done, made, away = list[Entry](), 0, ""
    for entry in entries:
        refusal = away
        if not entry.problems and not away:
            try:
                await register(access, body_of(entry))
                made += 1
            except StorageUnavailable as error:
                if not made:
                    raise
                refusal = away = str(error)  # what was made is told, and the others do not wait for the database
            except GatewayError as error:  # made by somebody else since we looked, for example
                refusal = str(error)
        done.append(entry.refused(refusal) if refusal and not entry.problems else entry)
    return done


def _shown(entry: Entry, *, applied: bool) -> ImportedEntry:
    return ImportedEntry(
        source=_encodable(entry.source),
        name=entry.name or None,
        outcome="skipped" if entry.problems else "created" if applied else "would_create",
        problems=[_encodable(each).replace(ASK, "the request's `env`") for each in entry.problems],
    )


def _encodable(text: str) -> str:
    """JSON can hold half of a surrogate pair, UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode()
