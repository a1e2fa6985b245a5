"""Text from files that are named on the command line."""

import base64
import sys
import zlib

from app.errors import InvalidRequest
from app.protocol.openapi.document import MAX_DOCUMENT_BYTES

SENT_PLAIN = 256 << 10  # characters of a document; a larger one is packed, as a request has a limit


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


def read_document(path: str) -> str:
    """A document of OpenAPI as a request has it. Raises as `read_text`."""
    text = read_text(path, MAX_DOCUMENT_BYTES)
    if len(text) <= SENT_PLAIN:
        return text
    packer = zlib.compressobj(wbits=31)
    return "data:application/gzip;base64," + base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()
