"""The JSON Schema for editors: the copy in docs/ is the code's, and it accepts and refuses what `apply` does."""

import json
from pathlib import Path

import jsonschema
import pytest

from app.cli import main
from app.cli.files.kinds import KINDS
from app.cli.files.schema import schema

COPY = Path(__file__).parents[3] / "docs/gateway.schema.json"


def of_acme(**sections: object) -> dict:
    return {"$schema": "gateway.schema.json", "version": 1, "tenants": {"acme": sections}}


def test_the_copy_in_the_repository_is_what_the_command_prints(capsys):
    assert main(["apply", "--schema"]) == 0
    printed = capsys.readouterr().out
    assert COPY.read_text() == printed, "trunkline apply --schema > docs/gateway.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


@pytest.mark.parametrize(
    "document",
    [
        of_acme(),
        {"tenants": {"acme": None}},
        of_acme(limits={"burst": None}, enabled=False, reason="x"),
        of_acme(backends={"time": {"command": "x", "env": {"A": "${env:A}"}, "sandbox": {"network": "web"}}}),
        of_acme(network_allow=["a:1"], backends={"time": {"command": "x", "sandbox": {"network": {"allow": ["a:1"]}}}}),
        of_acme(guides=None, issuers={"https://idp": {"algorithms": ["HS256"], "secret": "${file:secret}"}}),
        *(of_acme(**{kind.section: {"x": dict(kind.example)}}) for kind in KINDS),
    ],
)
def test_what_it_accepts(document):
    jsonschema.validate(document, schema())


@pytest.mark.parametrize(
    "document",
    [
        {"tenant": {}},
        {"version": 2},
        of_acme(limit={}),
        of_acme(limits={"burst": "1"}),
        of_acme(backends={"time": {"name": "time", "command": "x"}}),
        of_acme(backends={"time": {"comand": "x"}}),
        of_acme(backends={"TIME": {"command": "x"}}),
        of_acme(backends={"time": {"command": "x", "sandbox": {"network": {"web": True}}}}),
        of_acme(backends={"time": {"command": "x", "sandbox": {"network": "internet"}}}),
        of_acme(guides={"g": {}}),
    ],
)
def test_what_it_refuses(document):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())
