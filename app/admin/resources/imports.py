"""…/backends:import: registers the servers of a client's configuration as backends, or says what would happen."""

from collections.abc import Sequence

import anyio.to_thread

from app.admin._backend_rights import is_only_asked_for
from app.admin._route import ResourceRouter
from app.admin.context import Access, MayManage
from app.admin.idempotency import ONCE
from app.admin.importing import ASK, FORMATS, Entry, looks_like_toml, parse, settle
from app.admin.resources.backends import register
from app.admin.schemas.imports import ImportAnswer, ImportBody, ImportedEntry, body_of, validated
from app.errors import Forbidden, GatewayError, InvalidRequest, StorageUnavailable
from app.http.problems import responses

router = ResourceRouter(tags=["backends"])

_PAGE = 200


@router.post("/backends:import", dependencies=[ONCE], responses=responses(409))
async def import_backends(access: MayManage, body: ImportBody) -> ImportAnswer:
    """Says which backends a file of MCP servers would create; with `apply` creates them, one by one.

    Servers that cannot become backends are skipped; the answer is 200 either way. Nothing is overwritten. For whom the
    platform registers what, the `POST` of one backend says.
    """
    # In a thread: a file of this size would block the event loop for too long.
    entries = await anyio.to_thread.run_sync(_read, body)
    entries = [await _permitted(access, entry) for entry in settle(entries, await _taken(access))]
    if body.apply:
        entries = await _made(access, entries)
    return ImportAnswer(applied=body.apply, entries=[_shown(entry, applied=body.apply) for entry in entries])


def _read(body: ImportBody) -> list[Entry]:
    try:
        entries = parse(body.document, is_toml=looks_like_toml(body.document), supplied=body.env)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}; known formats are {FORMATS}", field="document") from None
    return [validated(entry) for entry in entries]


async def _permitted(access: Access, entry: Entry) -> Entry:
    """With a problem if who asks may not register it, and a note if it becomes a request."""
    if entry.problems:
        return entry
    try:
        is_request = await is_only_asked_for(access, body_of(entry).value(tenant=access.tenant))
    except Forbidden as error:
        return entry.refused(str(error))
    return entry.noted("a request: a platform administrator has to switch it on") if is_request else entry


async def _taken(access: Access) -> set[str]:
    names, last = set[str](), ""
    while page := await access.admin.backends.list(access.tenant, after=last, limit=_PAGE):
        last = page[-1].name
        names.update(spec.name for spec in page)
    return names


async def _made(access: Access, entries: Sequence[Entry]) -> list[Entry]:
    """Registers the entries without problems; adds a problem to those that could not be registered.

    Raises:
        StorageUnavailable: the database does not answer, and nothing was registered yet.
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
                refusal = away = str(error)  # the answer must name those that were made; no more waiting
            except GatewayError as error:  # for example: created by another request meanwhile
                refusal = str(error)
        done.append(entry.refused(refusal) if refusal and not entry.problems else entry)
    return done


def _shown(entry: Entry, *, applied: bool) -> ImportedEntry:
    return ImportedEntry(
        source=_encodable(entry.source),
        name=entry.name or None,
        outcome="skipped" if entry.problems else "created" if applied else "would_create",
        becomes=None if entry.problems else entry.command_line,
        needs=[] if entry.problems else entry.needs,
        problems=[_encodable(each).replace(ASK, "the request's `env`") for each in entry.problems],
        notes=[_encodable(each) for each in entry.notes],
    )


def _encodable(text: str) -> str:
    """JSON can contain half of a surrogate pair, UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode()
