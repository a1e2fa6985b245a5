"""…/backends/{backend}/tools: of a large list only the page is read."""

import json

import msgspec
import pytest

from app.admin.resources.tools import approvals
from app.backends.catalog.judging import read_tool
from app.protocol.toolset.offer import Offer
from tests.admin.rig import Rig

TOOLS_URL = "/api/v1/tenants/acme/backends/echo/tools?limit=2"
TOOLS = [msgspec.Raw(json.dumps({"name": f"t{number:03}", "inputSchema": {}}).encode()) for number in range(500)]
UNREADABLE = msgspec.Raw(b'{"name":"t001","inputSchema":{},"inputSchema":{}}')


async def test_a_page_of_tools_reads_its_own_and_leaves_out_what_nobody_can_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.offers.known["acme", "echo"] = Offer(msgspec.Raw(b"{}"), {"tools/list": (TOOLS[0], UNREADABLE, *TOOLS[1:])})
    read: list[msgspec.Raw] = []

    def counted(item: msgspec.Raw) -> object:
        read.append(item)
        return read_tool(item)

    monkeypatch.setattr(approvals, "read_tool", counted)
    page = (await rig.ask("GET", TOOLS_URL)).json()
    assert [each["tool"] for each in page["items"]] == ["t000", "t002"]
    rest = (await rig.ask("GET", f"{TOOLS_URL}&cursor={page['next_cursor']}")).json()
    assert [each["tool"] for each in rest["items"]] == ["t003", "t004"]
    assert len(read) <= 7  # and one more of each page, to know whether there is another
