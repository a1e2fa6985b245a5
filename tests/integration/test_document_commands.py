"""The commands of documents work as they stand, page by page, against a gateway; documents/test_examples.py sees to it
that none is left out."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT, blocks_of
from tests.documents.quick_trunkline import quick_trunkline
from tests.documents.test_toolsets import WALK
from tests.documents.test_wire import Step, appears, run, steps_of
from tests.haproxy import free_port
from tests.integration.gateway import running_gateway
from tests.integration.remote import LOOPBACK, SDK, listening

WITHIN_S = 400
CLOCK = f"{sys.executable} -m mcp_server_time --local-timezone UTC"
TENANT = f"trunkline tenants create acme\ntrunkline backends create time --tenant acme -- {CLOCK}\n"
NOTES = f"trunkline backends create notes --tenant acme -- {CLOCK}\n"
NAMED = f"{sys.executable} -I -S {ROOT}/tests/servers/named_tools.py"
SHOP = f"""trunkline tenants create acme
trunkline backends create shop --tenant acme -- {NAMED} get_order get_rules refund
trunkline backends create mail --tenant acme -- {NAMED} send
trunkline toolsets create work --tenant acme members='[{{"backend": "shop"}}, {{"backend": "mail"}}]'
trunkline backends check shop --tenant acme
trunkline backends check mail --tenant acme
"""
WEATHER, SHOP_PORT = free_port(), free_port()  # of a server elsewhere, and of an API
FAILED = "a command of the page has failed: "
ERR = f"""trap 'echo "{FAILED}$BASH_COMMAND"' ERR; set -E\n"""


@dataclass(frozen=True)
class Example:
    """How a page is run: what is there before, and what in it stands for something else here."""

    before: str = TENANT
    instead: dict[str, str] = field(default_factory=dict)
    may_fail: tuple[str, ...] = ()  # commands whose exit code says what they have found
    settings: dict[str, str] = field(default_factory=dict)
    beside: Callable[[], AbstractContextManager[object]] = nullcontext  # what runs meanwhile
    leaves_out: re.Pattern[str] = re.compile(r"(?!)")  # a part that has a test of its own


OPERATIONS = {
    "T enabled": "acme enabled", "--tenant T": "--tenant acme", " B ": " time ", " ID ": " $ID ", "/backup/": "$PWD/",
    "journalctl -u trunkline -o cat": "cat $LOG", "import ~/.cursor/mcp.json": "import mcp.json",
    'grep -F \'"4bf92f3577b34da6a3ce929d0e0e4736"\'': "grep -F sandboxes",
    "grep -F 'a credential is used from a new address'": "grep -F sandboxes",
    "--backend notes --backend time": "--backend clock",
}  # fmt: skip
PAGES = {
    "docs/access.md": Example(
        TENANT + f"trunkline backends create db --tenant acme -- {NAMED} query list_tables\n",
        may_fail=("trunkline access explain",),
    ),
    "docs/console.md": Example(
        TENANT + "ISSUER_ID=$(trunkline issuers create https://idp.example.com --tenant acme algorithms[]=RS256 "
        "discovery_url=https://idp.example.com/.well-known/openid-configuration --json | "
        """python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')\n""",
        {"ISSUER_ID": "$ISSUER_ID"},
    ),
    "docs/files-as-truth.md": Example(
        "mkdir gateways; echo 0123456789012345678901234567890123456789 > gateways/idp.secret; cp gateways/* .; "
        "cp page.yaml gateway.yaml; cp page.yaml gateways/; export NOTES_TOKEN=n0tes WEATHER_KEY=weather\n",
        {"apply -f gateway.yaml      ": "apply -f gateway.yaml --yes "},
    ),
    "docs/guides-and-recipes.md": Example(
        SHOP + "echo 'Up to 50 without asking.' > refunds.md; cp page.json refund.json\n"
    ),
    "docs/forking.md": Example(TENANT, may_fail=("trunkline backends check",)),
    "docs/parking.md": Example(
        TENANT + NOTES.replace("create notes", "create echo") + NOTES.replace("create notes", "create desk")
    ),
    "docs/inspecting.md": Example(),
    "docs/operations.md": Example(
        TENANT + """echo '{"mcpServers": {"clock": {"command": "true"}}}' > mcp.json\n"""
        "trunkline keys create --tenant acme --scope mcp:connect > key; ID=$(head -c 12 key | tail -c 8)\n"
        "for each in 198.51.100.66 192.0.2.17; do curl -sS -o /dev/null $TRUNKLINE_URL/api/v1/tenants/acme/me "
        '-H "X-Forwarded-For: $each" -H "Authorization: Bearer $(cat key)"; done\n',
        OPERATIONS,
        settings={"TRUSTED_PROXIES": "127.0.0.1"},
    ),
    "docs/pins.md": Example(TENANT + NOTES),
    "docs/registry.md": Example(TENANT, {"https://gw.example.com": "$TRUNKLINE_URL"}),
    "docs/remote-upstreams.md": Example(
        TENANT + "printf 'Bearer sdk' > token.txt\n",
        {"https://weather.example/mcp": f"http://127.0.0.1:{WEATHER}/mcp"},
        settings=LOOPBACK,
        beside=partial(listening, [*SDK, "streamable", str(WEATHER)], WEATHER),
    ),
    "docs/rest-apis.md": Example(
        TENANT + "printf 'Bearer shop' > token.txt; cp page.yaml shop.yaml\n",
        {"https://shop.example/v1": f"http://127.0.0.1:{SHOP_PORT}/v1"},
        settings=LOOPBACK,
        beside=partial(
            listening, [sys.executable, "-m", "http.server", str(SHOP_PORT), "--bind", "127.0.0.1"], SHOP_PORT
        ),
    ),
    "docs/security.md": Example(TENANT + NOTES),
    "docs/toolsets.md": Example(TENANT + NOTES, leaves_out=WALK),
}


def environment(home: Path) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": programs, "HOME": str(home), "COLUMNS": "200"}


def check(page: str, steps: list[Step], outputs: list[str], may_fail: tuple[str, ...] = ()) -> None:
    for step, output in zip(steps, outputs, strict=True):
        failed = re.findall(rf"^{FAILED}(.*)$", output, re.MULTILINE)
        assert [each for each in failed if not each.startswith(may_fail or "\0")] == [], f"{page}:{step.line}\n{output}"
        missing = [line for line in step.expected if not appears(line, output)]
        assert not missing, f"{page}:{step.line}: missing {missing} in\n{output}"


@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(tmp_path: Path, page: str):
    example, text = PAGES[page], (ROOT / page).read_text()
    for block in blocks_of(page):
        if block.language in ("yaml", "json"):
            file = tmp_path / f"page.{block.language}"
            file.exists() or file.write_text(block.body)
    text = example.leaves_out.sub(lambda found: re.sub(r"[^\n]+", "", found[0]), text)
    steps = steps_of(text)
    assert steps
    for step in steps:
        for words, others in example.instead.items():
            step.script = step.script.replace(words, others)
            # The width of a table depends on its rows.
            step.expected = [re.split(r" {2,}", line)[0] for line in step.expected]
    with (
        quick_trunkline(tmp_path) as folder,
        example.beside(),
        running_gateway(tmp_path / "data", **example.settings) as gateway,
    ):
        there = {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key, "LOG": str(gateway.log)}
        there |= {"TRUNKLINE_DATA_DIR": str(gateway.data_dir), **environment(tmp_path)}
        there["PATH"] = f"{folder}{os.pathsep}{there['PATH']}"
        first = Step(0, ERR + example.before, [])
        outputs = run([first, *steps], there, tmp_path, WITHIN_S)
    check(page, [first, *steps], outputs, example.may_fail)


@pytest.mark.timeout(WITHIN_S + 60)
def test_the_commands_of_the_readme_work_in_an_empty_home(tmp_path: Path):
    """The first of them start the gateway; later ones use its servers in clients."""
    port, text = free_port(), (ROOT / "README.md").read_text()
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text('{"mcpServers": {"clock": {"command": "true"}}}')
    steps = steps_of(text.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("export PATH=", "unused="))
    assert len(steps) >= 2
    there = {"TRUNKLINE_PORT": str(port), "XDG_DATA_HOME": "", **environment(tmp_path)}
    steps = [Step(0, ERR, []), *steps, Step(0, "kill %1; wait || true", [])]
    with quick_trunkline(tmp_path) as folder:
        there["PATH"] = f"{folder}{os.pathsep}{there['PATH']}"
        outputs = run(steps, there, tmp_path, WITHIN_S)
    check("README.md", steps, outputs, ("trunkline doctor",))


def test_the_client_of_the_readme_gets_an_answer(tmp_path: Path):
    (program,) = (block.body for block in blocks_of("README.md") if block.language == "python")
    with running_gateway(tmp_path / "data") as gateway:
        url = gateway.add_backend("default", "time", sys.executable, ["-m", "mcp_server_time"])
        program = program.replace("http://127.0.0.1:8080/t/default/time/mcp", f"{url}/mcp")
        (tmp_path / "client.py").write_text(program.replace("tlk_…", gateway.key("default")))
        (output,) = run([Step(0, f"{sys.executable} client.py", [])], environment(tmp_path), tmp_path)
    assert "Europe/Zurich" in output
