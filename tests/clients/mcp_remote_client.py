"""mcp-remote-client: connects and lists; it has no other command, and says everything on stderr."""

import json
import os
import re
import subprocess
from typing import Any

WITHIN_S = 45


def said(output: str, title: str) -> Any:
    """The JSON after `[pid] title: `."""
    found = re.search(rf"^\[\d+\] {title}: ", output, re.MULTILINE)
    assert found, output
    return json.JSONDecoder().raw_decode(output[found.end() :])[0]


def main() -> None:
    command = [os.environ["NPM"] + "/node_modules/.bin/mcp-remote-client", os.environ["URL"]]
    command += ["--header", f"Authorization: Bearer {os.environ['KEY']}"]
    # It ends when its stdin does: that stays open.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        output = process.stderr.read()
        assert process.wait(WITHIN_S) == 0, output
    found = {
        "tools": any(tool["name"] == "test_simple_text" for tool in said(output, "Tools")["tools"]),
        "resources": [resource["uri"] for resource in said(output, "Resources")["resources"]],
    }
    print(json.dumps(found))


main()
