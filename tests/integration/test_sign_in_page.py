"""docs/sign-in.md is true: its commands run against a real gateway, with a provider of this test for Keycloak."""

import os
import sys
from pathlib import Path

import pytest

from tests.documents.test_wire import appears, run, steps_of
from tests.integration.gateway import ROOT, running_gateway
from tests.integration.test_jwt import Idp
from tests.integration.test_jwt import token as jwt_of

PAGE, GATEWAY = ROOT / "docs/sign-in.md", "https://gw.example.com"
ACME, TEAMS = "https://login.example.com/realms/acme", "https://login.example.com/realms/teams"


def test_every_command_of_the_page_about_sign_in_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    acme, teams = Idp(), Idp()
    try:
        tokens = {
            "good": jwt_of(acme, GATEWAY, realm_access={"roles": ["tools-user"]}, scope="openid"),
            "other-audience": jwt_of(acme, "account", realm_access={"roles": ["tools-user"]}),
            "rotated": jwt_of(acme, GATEWAY, kid="unpublished"),
            "teams": jwt_of(teams, GATEWAY, realm_access={"roles": ["tools-user", "team-red"]}, scope="openid"),
        }
        for name, text in tokens.items():
            (tmp_path / f"{name}.jwt").write_text(text + "\n")
        steps = steps_of(PAGE.read_text().replace(ACME, acme.url).replace(TEAMS, teams.url))
        assert sum(bool(step.expected) for step in steps) == len(steps) == 8
        with running_gateway(tmp_path / "data", OUTBOUND_ALLOW="127.0.0.0/8") as gateway:
            outputs = run(steps, {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key}, tmp_path)
    finally:
        acme.close()
        teams.close()
    for step, output in zip(steps, outputs, strict=True):
        missing = [line for line in step.expected if not appears(line, output)]
        assert not missing, f"docs/sign-in.md:{step.line}: missing {missing} in\n{output}"
