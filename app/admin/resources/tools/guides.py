"""…/guides, of one tenant: what administrators have written down for those who use tools."""

from app.admin._resource import ResourceApi, Special
from app.admin.context import Access
from app.admin.schemas.declared import schemas_of
from app.domain.resources.guides import GUIDES, Guide


def _toolsets_follow(access: Access, _old: Guide | None, _new: Guide | None) -> None:
    access.admin.effects.writings_changed(access.tenant)


router = ResourceApi(GUIDES, schemas_of(GUIDES), Special(after=_toolsets_follow)).router
