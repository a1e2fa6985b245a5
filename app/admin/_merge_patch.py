"""JSON merge patches (RFC 7396)."""

from collections.abc import Container, Mapping
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

_M = TypeVar("_M", bound=BaseModel)


def patched(model: type[_M], members: Mapping[str, Any], patch: Mapping[str, Any], *, nulls: Container[str] = ()) -> _M:
    """The members with the patch applied, validated as a whole. One that is None is not there; deeper, null is a value.
    In the patch null removes, but within the members `nulls` it is a value too.

    Raises:
        RequestValidationError: the result is not a valid body of this model.
    """
    try:
        present = {name: value for name, value in members.items() if value is not None}
        return model.model_validate(_merged(present, patch, nulls))
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(errors) from None


def _merged(members: Mapping[str, Any], patch: Mapping[str, Any], nulls: Container[str] = ()) -> dict[str, Any]:
    merged = dict(members)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            known = before if isinstance(before, Mapping) else {}
            merged[name] = {**known, **value} if name in nulls else _merged(known, value)
        else:
            merged[name] = value
    return merged
