"""Bodies: who may use what of a backend or a toolset."""

from app.admin.schemas.declared import part, shows
from app.admin.schemas.fields import Answer, Strict
from app.domain.resources.access import AccessEntry, CallLimits, Who


@part(Who)
class WhoBody(Strict):
    """Whom an entry names."""


@part(CallLimits)
class CallLimitsBody(Strict):
    """How often each caller may use what the entry lists."""


@part(AccessEntry)
class AccessEntryBody(Strict):
    """What somebody may use."""


@shows(AccessEntryBody, of_tenant=False)
class AccessEntryAnswer(Answer):
    """What somebody may use."""


AccessShown = list[AccessEntryAnswer]
