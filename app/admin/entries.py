"""What an entry of an import is as a body of the REST API. Knows no web framework: the command line uses it too."""

from pydantic import ValidationError

from app.admin.schemas.backends import BackendBody
from app.importing import Entry


def body_of(entry: Entry) -> BackendBody:
    """The body that POST would be sent for the entry.

    Raises:
        ValidationError: it is none.
    """
    return BackendBody.model_validate(dict(entry.members))


def validated(entry: Entry) -> Entry:
    """The entry, with the complaints of the model about it."""
    if entry.problems:
        return entry
    try:
        body_of(entry)
    except ValidationError as error:
        # Not the input: an env value may be a secret.
        found = error.errors(include_input=False, include_url=False, include_context=False)
        return entry.refused(*(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:5]))
    return entry
