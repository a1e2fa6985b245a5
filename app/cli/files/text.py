"""Text from files that are named on the command line."""

import sys

from app.errors import InvalidRequest


def read_text(path: str, most: int) -> str:
    """The content of a file of up to `most` bytes; - is stdin.

    Raises:
        InvalidRequest: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        if path == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(most + 1)
        if len(content) > most:
            raise InvalidRequest(f"{path!r} is larger than {most} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path!r} is not UTF-8 text") from None
    except ValueError:  # with a NUL in it, or half of a surrogate pair
        raise InvalidRequest(f"cannot read {path!r}: this is not the name of a file") from None
