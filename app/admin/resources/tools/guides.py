"""…/guides, of one tenant: what administrators have written down for those who use tools."""

from app.admin._resource import ResourceApi
from app.admin.schemas.declared import schemas_of
from app.domain.resources.guides import GUIDES

router = ResourceApi(GUIDES, schemas_of(GUIDES)).router
