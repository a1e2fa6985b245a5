"""The JSON Schema of the files, for editors: made of the models that the REST API checks bodies with."""

from typing import Any

from pydantic.json_schema import models_json_schema

from app.admin.schemas.issuers import SignInBody
from app.admin.schemas.tenants import TenantMembers
from app.cli.files.kinds import KINDS, Kind
from app.domain import NAME_PATTERN

TITLE = "What a Trunkline gateway should have"
_REFERENCE = "`${env:NAME}` and `${file:PATH}` are read where the command runs."


def schema() -> dict[str, Any]:
    """The schema, as a JSON object."""
    models = [(kind.body, "validation") for kind in KINDS]
    _, found = models_json_schema([*models, (TenantMembers, "validation")], ref_template="#/$defs/{model}")  # type: ignore[list-item]
    kept = found["$defs"]
    for kind in KINDS:
        _adapt(kept[kind.body.__name__], kind)
    _refer(kept[SignInBody.__name__]["properties"]["client_secret"])
    tenant = kept.pop(TenantMembers.__name__)
    tenant["properties"] |= {kind.section: _section(kind) for kind in KINDS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "version": {"const": 1},
            "tenants": {
                "description": "By name. What is not here is left alone.",
                "type": "object",
                "propertyNames": {"pattern": NAME_PATTERN},
                "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Tenant"}, {"type": "null"}]},
            },
        },
        "$defs": {"Tenant": {**tenant, "title": "Tenant"}, **kept},
    }


def _section(kind: Kind) -> dict[str, Any]:
    names = {"propertyNames": {"pattern": NAME_PATTERN}} if kind.named_by == "name" else {}
    return {
        "description": kind.about,
        "type": ["object", "null"],
        **names,
        "additionalProperties": {"$ref": f"#/$defs/{kind.body.__name__}"},
    }


def _adapt(body: dict[str, Any], kind: Kind) -> None:
    """Objects are named by their key, and secrets may be references."""
    body["properties"].pop(kind.named_by)
    body["required"] = [name for name in body.get("required", []) if name != kind.named_by]
    if not body["required"]:
        del body["required"]
    for name in (*kind.secret_maps, *kind.secrets):
        _refer(body["properties"][name])


def _refer(described: dict[str, Any]) -> None:
    described["description"] = f"{described.get('description', '')} {_REFERENCE}".strip()
