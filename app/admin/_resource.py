"""ResourceApi: the five routes of a resource, made of its declaration. What is special about a resource is in functions
that stand beside its router (`app/admin/resources`) and are handed in."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Path, Request, Response
from pydantic import BaseModel

from app.admin._conditions import AskedState, IfMatch, tagged
from app.admin._merge_patch import patched
from app.admin._paging import AskedPage, Page, PageQuery
from app.admin._route import ResourceRouter
from app.admin.audit_changes import changes_of
from app.admin.context import Access, AdminContext, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.schemas.declared import Schemas
from app.domain import is_name
from app.domain.resources.fields import Stored
from app.domain.resources.resource import Resource
from app.errors import NotFound
from app.http.problems import responses
from app.storage.audit import Act

V = TypeVar("V")

Before = Callable[[Access, V | None, V | None], Awaitable[None]]  # raises where the change may not be
Merged = Callable[[Access, V, Any], V]  # the object with a merge patch
Show = Callable[[Access, V, Request], Awaitable[BaseModel]]


class Store(Protocol[V]):
    """As `storage.declared.StoredRepository`."""

    async def get(self, tenant: str, name: str) -> V: ...
    async def list(self, tenant: str, *, after: str, limit: int) -> Sequence[V]: ...
    async def create(self, tenant: str, value: V, *, act: Act) -> V: ...
    async def replace(self, tenant: str, value: V, *, act: Act) -> V: ...
    async def delete(self, tenant: str, name: str, *, version: int | None, act: Act) -> None: ...


@dataclass(frozen=True)
class Special(Generic[V]):
    """What is not as with every resource. Changes call `before` with the old and the new object, None where there is
    none. `shown` is the answer of one object instead of that of the schemas; it is made by `show`, or by `show_new` for
    a new object, of which everything is known."""

    store: Callable[[AdminContext], Store[V]] | None = None
    before: Before[V] | None = None
    merged: Merged[V] | None = None
    shown: type[BaseModel] | None = None
    show: Show[V] | None = None
    show_new: Callable[[Access, V, Response], BaseModel] | None = None


class ResourceApi(Generic[V]):
    """The routes of a resource."""

    def __init__(self, resource: Resource[V], schemas: Schemas[V], special: Special[V] | None = None) -> None:
        self._resource, self._schemas, self._answer = resource, schemas, schemas.answer
        self._special = special or Special()
        self.router = ResourceRouter(tags=[resource.name])
        self._add_routes(self._special.shown or schemas.answer)

    def _add_routes(self, shown: type[BaseModel]) -> None:
        many = f"/{self._resource.name}"
        one = f"{many}/{{{self._resource.one}}}"
        name = {self._resource.one: Annotated[str, Path(description=f"The {self._resource.one}'s name.")]}
        reads, writes = {"access": MayRead}, {"access": MayManage}
        answers, to_object = {"request": Request, "response": Response}, {**name, "if_match": AskedState}
        page = Page[self._schemas.listed]  # type: ignore[name-defined]
        made = {"status_code": 201, "dependencies": [ONCE], "responses": responses(409), "response_model": shown}
        changed = {"responses": responses(409, 412)}
        self._add("create", "POST", many, self.create, {**writes, "body": self._schemas.body, **answers}, made)
        self._add("list", "GET", many, self.list, {**reads, "asked": AskedPage}, {"response_model": page})
        self._add("get", "GET", one, self.get, {**reads, **name, **answers}, {"response_model": shown})
        takes = {**writes, **to_object, "patch": self._schemas.patch, **answers}
        self._add("change", "PATCH", one, self.change, takes, {**changed, "response_model": shown})
        self._add("delete", "DELETE", one, self.delete, {**writes, **to_object}, {**changed, "status_code": 204})

    async def create(self, access: Access, body: Any, request: Request, response: Response) -> BaseModel:
        """`POST`."""
        value: V = body.value(access.admin.now(), tenant=access.tenant)
        await self._allow(access, None, value)
        act = self._act(access, "create", None, value)
        value = await self._store(access.admin).create(access.tenant, value, act=act)
        response.headers["Location"] = f"/api/v1/tenants/{access.tenant}/{self._target(value)}"
        return await self._told(access, value, request, response, is_new=True)

    async def list(self, access: Access, asked: PageQuery) -> Page[Any]:
        """`GET` of all."""
        return await asked.read(self._store(access.admin).list, access.tenant, _name, self._schemas.listed.of)

    async def get(self, access: Access, name: str, request: Request, response: Response) -> BaseModel:
        """`GET` of one."""
        return await self._told(access, await self.find(access, name), request, response)

    async def change(
        self, access: Access, name: str, if_match: IfMatch, patch: BaseModel, request: Request, response: Response
    ) -> BaseModel:
        """`PATCH`."""
        found = await self.find(access, name)
        if_match.require(self._answer.of(found))
        changed = (self._special.merged or self.merged)(access, found, patch)
        if changed != found:
            await self._allow(access, found, changed)
            if isinstance(changed, Stored):
                changed = replace(changed, changed_at=access.admin.now())
            act = self._act(access, "change", found, changed, " ".join(sorted(patch.model_fields_set)))
            with if_match.still():
                changed = await self._store(access.admin).replace(access.tenant, changed, act=act)
        return await self._told(access, changed, request, response)

    async def delete(self, access: Access, name: str, if_match: IfMatch) -> None:
        """`DELETE`."""
        found: Any = await self.find(access, name)
        if_match.require(self._answer.of(found))
        await self._allow(access, found, None)
        act = self._act(access, "delete", found, None)
        with if_match.still():
            version = if_match.version(found.version)
            await self._store(access.admin).delete(access.tenant, name, version=version, act=act)

    async def find(self, access: Access, name: str) -> V:
        """Raises NotFound."""
        if not is_name(name):
            raise NotFound(self._resource.missing())
        return await self._store(access.admin).get(access.tenant, name)

    def merged(self, access: Access, found: Any, patch: BaseModel, **also: Any) -> V:
        """The object with the merge patch applied, and with these members."""
        body: Any = self._schemas.body
        members = self._answer.of(found).model_dump(include=set(body.model_fields))
        sent = {**patch.model_dump(exclude_unset=True), **also}
        changed = patched(body, members, sent)
        value: V = changed.value(getattr(found, "changed_at", None), found.version, tenant=access.tenant)
        return value

    def _store(self, admin: AdminContext) -> Store[V]:
        if self._special.store is not None:
            return self._special.store(admin)
        declared: Any = self._resource
        return admin.stored.of(declared)

    async def _allow(self, access: Access, old: V | None, new: V | None) -> None:
        if self._special.before is not None:
            await self._special.before(access, old, new)

    async def _told(
        self, access: Access, value: V, request: Request, response: Response, *, is_new: bool = False
    ) -> BaseModel:
        answer, special = tagged(response, self._answer.of(value)), self._special
        if is_new and special.show_new is not None:
            return special.show_new(access, value, response)
        return answer if special.show is None else await special.show(access, value, request)

    def _act(self, access: Access, verb: str, old: V | None, new: V | None, detail: str = "") -> Act:
        changes = changes_of(*(None if each is None else self._answer.of(each) for each in (old, new)))
        return access.act(f"{self._resource.one}.{verb}", self._target(old or new), detail, changes=changes)

    def _target(self, value: V | None) -> str:
        return f"{self._resource.name}/{_name(value)}"

    def _add(
        self,
        verb: str,
        method: str,
        path: str,
        endpoint: Callable[..., Awaitable[Any]],
        takes: Mapping[str, Any],
        more: Mapping[str, Any],
    ) -> None:
        """FastAPI reads name, words and parameters of a route from its function."""

        async def route(**given: Any) -> Any:
            return await endpoint(*(given[each] for each in takes))

        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in takes.items()]
        route.__name__ = f"{verb}_{self._resource.name if verb == 'list' else self._resource.one}"
        route.__doc__ = self._resource.words_of(verb)
        route.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.router.add_api_route(path, route, methods=[method], **more)


def _name(value: Any) -> str:
    name: str = value.name
    return name
