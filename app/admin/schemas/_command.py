"""The program of a backend, as one word."""

import json
import os
import re
import shlex

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import ELSEWHERE

MAX_QUOTED = 200  # characters of a value in a message

_is_of_windows = re.compile(r"""["']?[A-Za-z]:[\\/]""").match


def one_program(command: str, info: ValidationInfo) -> str:
    """Refuses a command line, because no shell splits it. The path of an existing file may contain spaces."""
    if _is_of_windows(command):
        raise _refused(
            "is a path of Windows: name the program as it is called on the gateway's machine, which runs Linux"
        )
    if command.startswith("~"):
        raise _refused("begins with `~`, which no shell replaces here: write the whole path")
    is_file = command.startswith("/") and (info.context is ELSEWHERE or os.path.isfile(command))
    if is_file or not any(each.isspace() for each in command):
        return command
    message = "must be one program without its arguments"
    if command.startswith("/"):
        message = "is no file on the gateway's machine; if it has arguments, it " + message
    try:
        program, *arguments = shlex.split(re.sub(r"\s", " ", command))
    except ValueError:  # empty, or a quotation mark is not closed
        pass
    else:
        message += f": write {json.dumps(program)[:MAX_QUOTED]}"
        if arguments:
            message += f", and {json.dumps(arguments)[1:-1][:MAX_QUOTED]} at the beginning of `args`"
    raise _refused(message)


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("command_line", "{message}", {"message": message})
