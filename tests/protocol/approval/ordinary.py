"""Ordinary tools, and what their authors might change in their wording."""

from collections.abc import Callable
from typing import Any, NamedTuple


def tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {"result": {"type": "string", "description": "What was found or done."}},
        },
        "annotations": {
            "destructiveHint": True,
            "readOnlyHint": False,
            "openWorldHint": True,
            "idempotentHint": False,
        },
    }


def string(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, "maxLength": 400, **more}


ORDINARY = [
    tool(
        "read_file",
        "Reads a text file from the project folder. Files over one megabyte are cut off.",
        {
            "path": string("Relative to the project folder."),
            "encoding": string("Of the file.", enum=["utf-8", "latin-1"]),
        },
        ["path"],
    ),
    tool(
        "send_message",
        "Sends a message to a channel of the team. Markdown is supported in the text.",
        {"channel": string("Name of the channel, without the hash sign."), "text": string("At most 400 characters.")},
        ["channel", "text"],
    ),
    tool(
        "search_issues",
        "Finds issues by their words. The newest issues come first, ten on each page.",
        {
            "query": string("Words, separated by spaces."),
            "page": {"type": "integer", "description": "The first is 1.", "minimum": 1, "maximum": 100},
        },
        ["query"],
    ),
    tool(
        "forecast",
        "Returns the weather forecast of a place. Temperatures are in degrees Celsius.",
        {"place": string("A town, with its country if there are several."), "days": {"type": "integer", "maximum": 7}},
        ["place"],
    ),
    tool(
        "run_query",
        "Runs a SQL query on the reporting database. Results have at most a thousand rows.",
        {"sql": string("One statement.", pattern="^[^;]*$"), "format": string("Of the result.", enum=["csv", "json"])},
        ["sql"],
    ),
    tool(
        "create_event",
        "Creates an event in the calendar. Times without a zone are those of the calendar.",
        {"title": string("Shown in the calendar."), "start": string("ISO 8601.", format="date-time")},
        ["title", "start"],
    ),
    tool(
        "resize_image",
        "Changes the size of an image and keeps its proportions. Formats are PNG and JPEG.",
        {"image": string("Identifier of the image."), "width": {"type": "integer", "minimum": 1, "maximum": 4096}},
        ["image", "width"],
    ),
    tool(
        "delete_branch",
        "Deletes a branch of the repository. Branches that are protected stay.",
        {"branch": string("Its name.", pattern="^[A-Za-z0-9/_-]+$"), "force": {"type": "boolean"}},
        ["branch"],
    ),
]
NAMES = frozenset(each["name"] for each in ORDINARY)


class Edit(NamedTuple):
    """A change of the wording as authors make them. It does nothing to a tool whose text has no place for it."""

    name: str
    apply: Callable[[dict[str, Any]], None]


def in_text(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def apply(tool: dict[str, Any]) -> None:
        tool["description"] = tool["description"].replace(old, new)
        for parameter in tool["inputSchema"]["properties"].values():
            if "description" in parameter:
                parameter["description"] = parameter["description"].replace(old, new)

    return apply


def set_title(tool: dict[str, Any]) -> None:
    tool["title"] = f"{tool['title']}s"


def wrap(tool: dict[str, Any]) -> None:
    tool["description"] = "\n    " + tool["description"].replace(". ", ".\n    ") + "\n"


def drop_last_sentence(tool: dict[str, Any]) -> None:
    tool["description"] = tool["description"].partition(". ")[0] + "."


def close(tool: dict[str, Any]) -> None:
    for parameter in tool["inputSchema"]["properties"].values():
        if "maxLength" in parameter:
            parameter["maxLength"] = 100


def describe_result(tool: dict[str, Any]) -> None:
    tool["outputSchema"]["properties"]["result"]["description"] = "What was found, or what was done."


HARMLESS = [
    Edit("typographic quotes", in_text("a ", "a \u2009")),
    Edit("another article", in_text(" the ", " a ")),
    Edit("an article more", in_text(" of ", " of the ")),
    Edit("another verb", in_text("Reads", "Returns the contents of")),
    Edit("a synonym", in_text("Deletes", "Removes")),
    Edit("longer", in_text("are cut off", "are truncated, with a mark at the end")),
    Edit("in brackets", in_text("Markdown is supported", "Markdown (bold, italics, lists) is supported")),
    Edit("spelling", in_text("separated", "seperated")),
    Edit("emoji", in_text("Returns", "\u26a0\ufe0f Returns")),
    Edit("other order", in_text("PNG and JPEG", "JPEG and PNG")),
    Edit("plural of the title", set_title),
    Edit("wrapped lines", wrap),
    Edit("shorter", drop_last_sentence),
    Edit("tighter limits", close),
    Edit("result", describe_result),
]
