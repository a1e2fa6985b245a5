"""Every fenced block of every document is run or taken apart by a test; a new one that no test knows fails here.

- `sh` is run: by the tests of its page (TESTED), or by integration/test_document_commands.py.
- `sh parsed` cannot be run by a test (root, Docker, Kubernetes, minutes): as in every `sh`, each command, option and
  file that it names must exist (command_lines.py).
- `json`, `yaml`, `python` are read as such; `text` is what the block before it prints; `console` a dialogue, of which
  the commands are taken apart. A fence without a language is a drawing.
"""

import json
import re

import pytest
import yaml  # type: ignore[import-untyped]

from tests.documents.blocks import ROOT, Block, blocks_of, fences_of, pages
from tests.documents.command_lines import problems_of

# Who runs the `sh` blocks of a page, all of them.
TESTED = {
    "docs/admin-api.md": "admin/test_router_document.py",
    "docs/cli.md": "documents/test_wire.py",
    "docs/on-call.md": "incidents/test_on_call.py",
    "docs/quickstart.md": "documents/test_quickstart.py",
    "docs/sign-in.md": "integration/test_sign_in_page.py",
    "docs/wire.md": "documents/test_wire.py",
}
HERE = "integration/test_document_commands.py"
BLOCKS = [block for page in pages() for block in blocks_of(page)]


# --- no fence is overlooked


def test_every_fence_is_read():
    """Each line that opens or closes one belongs to a block that we have."""
    assert [page for page in pages() if fences_of(page) != 2 * len(blocks_of(page))] == []
    assert len(BLOCKS) > 150


def test_every_page_with_commands_is_run():
    here = {
        *re.findall(r'^    "(docs/[\w-]+\.md)": Example', (ROOT / "tests" / HERE).read_text(), re.MULTILINE),
        "README.md",
    }
    with_commands = {block.page for block in BLOCKS if (block.language, block.kind) == ("sh", "")}
    assert with_commands == here | set(TESTED), "a page that nobody runs, or one without commands"
    assert not here & set(TESTED)


@pytest.mark.parametrize(("page", "test"), TESTED.items())
def test_who_runs_a_page_is_there(page: str, test: str):
    assert page in (ROOT / "tests" / test).read_text()


def test_every_kind_of_block_is_known():
    kinds = {(block.language, block.kind) for block in BLOCKS}
    ours = {("sh", each) for each in ("", "parsed", "download", "claude", "haproxy", "caddy")}
    of_quickstart = {block.page for block in BLOCKS if block.kind not in ("", "parsed")}
    others = {(each, "") for each in ("", "console", "json", "mermaid", "python", "text", "yaml")}
    assert kinds <= ours | others
    assert of_quickstart <= {"docs/quickstart.md", "docs/toolsets.md"}


def of(*languages: str) -> pytest.MarkDecorator:
    found = [block for block in BLOCKS if block.language in languages]
    assert found
    return pytest.mark.parametrize("block", found, ids=str)


# --- each says what there is


@of("sh", "console")
def test_every_command_is_one_that_there_is(block: Block):
    script = block.body
    if block.language == "console":
        script = "\n".join(line[2:] for line in script.splitlines() if line.startswith("$ "))
    assert problems_of(script) == []


@of("json")
def test_json_is_json(block: Block):
    text = block.body.strip()
    json.loads("{" + text + "}" if text.startswith('"') else text)


@of("yaml")
def test_yaml_is_yaml(block: Block):
    assert isinstance(yaml.safe_load(block.body), dict)


@of("python")
def test_python_is_python(block: Block):
    compile(block.body, str(block), "exec")


@of("mermaid")
def test_a_picture_is_of_a_kind_that_mermaid_draws(block: Block):
    assert block.body.split()[0] in ("sequenceDiagram", "flowchart", "graph")


@of("")
def test_a_drawing_has_no_commands(block: Block):
    programs = ("trunkline ", "curl ", "scripts/", "export ", "docker ", "$ ", "{")
    assert [line for line in block.body.splitlines() if line.startswith(programs)] == []


@of("text")
def test_output_stands_behind_the_command_that_prints_it(block: Block):
    before = [each for each in blocks_of(block.page) if each.line < block.line]
    shown = block.page == "docs/scaling.md"  # test_scaling.py
    assert shown or (before and before[-1].language in ("sh", "text") and before[-1].heading == block.heading)
