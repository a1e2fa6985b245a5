"""JSON merge patches (RFC 7396)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

_M = TypeVar("_M", bound=BaseModel)


def patched(model: type[_M], members: Mapping[str, Any], patch: Mapping[str, Any]) -> _M:
    """The members with the patch applied, validated as a whole. One that is None is not there; deeper, null is a value.

    Raises:
        RequestValidationError: the result is not a valid body of this model.
    """
    try:
        present = {name: value for name, value in members.items() if value is not None}
        return model.model_validate(_merged(present, patch))
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(errors) from None


def _merged(members: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(members)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged
