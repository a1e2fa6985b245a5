"""The commands `tools` and `call`."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.cli.resources import print_json, print_table
from app.cli.rest import open_rest
from app.cli.trying.arguments import arguments_of, properties, required, summary, types_of
from app.cli.trying.endpoint import Endpoint, Tool
from app.errors import NotFound
from app.text.meant import did_you_mean
from app.text.terminal.progress import Progress
from app.text.terminal.text import printable

MOST_NAMED = 20  # tools in an error


def list_tools(options: argparse.Namespace) -> int:
    """`trunkline tools`: a table, or all of one tool. Raises GatewayError."""
    with open_rest(options) as rest, Progress() as progress:
        progress.begin(f"asking {options.tenant}/{options.backend} for its tools")
        tools = Endpoint(rest, options.tenant, options.backend).tools()
    if options.tool is not None:
        tool = _named(options.tool, tools, options.backend)
        print_json(tool) if options.json else print("\n".join(_described(tool)))
    elif options.json:
        print_json(tools)
    elif tools:
        print_table([_row(each) for each in tools], ("tool", "arguments", "description"))
    else:
        print(f"{options.backend} has no tools", file=sys.stderr)
    return 0


def call_tool(options: argparse.Namespace) -> int:
    """`trunkline call`: prints the content of the result; exit code 1 if it is an error. Raises GatewayError."""
    with open_rest(options) as rest, Progress() as progress:
        endpoint = Endpoint(rest, options.tenant, options.backend)
        progress.begin(f"asking {options.tenant}/{options.backend} for its tools")
        tool = _named(options.tool, endpoint.tools(), options.backend)
        arguments = arguments_of(options.members, _schema(tool), options.tool)
        doing = f"calling {options.tool} of {options.backend}"
        progress.begin(doing)
        result = endpoint.call(tool, arguments, lambda params: progress.begin(f"{doing}{_how_far(params)}"))
    is_error = result.get("isError") is True
    if options.json:
        print_json(result)
    else:
        stream = sys.stderr if is_error else sys.stdout
        for text in _texts(result):
            # A terminal would do what it says; into a pipe goes what the tool has sent.
            print("\n".join(map(printable, text.splitlines())) if stream.isatty() else text, file=stream)
    return 1 if is_error else 0


def _named(name: str, tools: Sequence[dict[str, Any]], backend: str) -> dict[str, Any]:
    names = [str(each.get("name")) for each in tools]
    if name in names:
        return tools[names.index(name)]
    there_are = f"; it has {', '.join(map(printable, names[:MOST_NAMED]))}" if names else "; it has no tools"
    if len(names) > MOST_NAMED:
        there_are = f"; see `trunkline tools {backend}`"
    raise NotFound(f"{backend} has no tool {name[:100]!a}{did_you_mean(name, names) or there_are}")


def _schema(tool: Tool) -> Mapping[str, Any]:
    schema = tool.get("inputSchema")
    return schema if isinstance(schema, dict) else {}


def _row(tool: Tool) -> dict[str, Any]:
    """Of its description the first line."""
    lines = str(tool.get("description") or tool.get("title") or "").strip().splitlines()
    about = lines[0] if lines else ""
    return {"tool": tool.get("name"), "arguments": summary(_schema(tool)), "description": about}


def _described(tool: Tool) -> Iterator[str]:
    """Everything that somebody who calls it wants to know."""
    schema = _schema(tool)
    yield f"{printable(str(tool.get('name')))} {printable(summary(schema))}".rstrip()
    yield from (f"  {printable(line)}".rstrip() for line in str(tool.get("description") or "").strip().splitlines())
    for name, each in properties(schema).items():
        kinds = "|".join(types_of(each, schema)) or "any"
        yield printable(f"{name}: {kinds}{'' if name in required(schema) else ', may be left out'}")
        choices = each.get("enum")
        about = [*str(each.get("description") or "").strip().splitlines()]
        about += [f"one of {', '.join(map(str, choices))}"] if isinstance(choices, list) else []
        yield from (f"  {printable(line)}".rstrip() for line in about)


def _how_far(params: Mapping[str, Any]) -> str:
    done, total, message = (params.get(name) for name in ("progress", "total", "message"))
    far = f", {done}" + (f" of {total}" if total is not None else "")
    return far + (f": {message}" if message else "")


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """What a result says. Without content its structured content."""
    content = result.get("content")
    blocks = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    if not blocks and result.get("structuredContent") is not None:
        yield json.dumps(result["structuredContent"], indent=2)
    for block in blocks:
        yield _text_of(block)


def _text_of(block: Mapping[str, Any]) -> str:
    inner = block.get("resource")
    resource: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    for text in (block.get("text"), resource.get("text")):
        if isinstance(text, str):
            return text
    uri = block.get("uri") or resource.get("uri")
    if isinstance(uri, str):
        return uri
    size = len(str(block.get("data") or resource.get("blob") or "")) * 3 // 4
    return f"({block.get('type')}, {block.get('mimeType') or resource.get('mimeType')}, {size} bytes: see --json)"
