"""The text of a document, as it is given: plain, or in a `data:` URL; and what it is known by."""

import base64
import binascii
import hashlib
import re
import zlib

MAX_DOCUMENT_BYTES = 16 << 20
MARK = "sha256:"  # before the hash that stands for a text
_DATA = re.compile(r"data:(?:application/gzip)?;base64,", re.IGNORECASE)

is_mark = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
is_url = re.compile(r"https?://\S+", re.IGNORECASE).fullmatch


class UnfitDocument(ValueError):
    """The document cannot be used, in a sentence that says what to do."""


def is_a_name(given: str) -> bool:
    """Whether this can only be meant as the name of a file."""
    begins = given.removeprefix("\ufeff").lstrip()[:1]
    is_text = "\n" in given or begins in ("{", "[", "<") or _DATA.match(given) is not None
    return not (is_text or is_url(given) or is_mark(given))


def known_by(given: str) -> str:
    """What a document is shown as: its address, or what its text is known by."""
    if is_url(given) or is_mark(given):
        return given
    try:
        return mark_of(text_of(given))
    except UnfitDocument:
        return given


def mark_of(text: bytes) -> str:
    """What a document is known by."""
    return MARK + hashlib.sha256(text).hexdigest()


def text_of(given: str) -> bytes:
    """The text itself, of a text or of a `data:` URL with gzip in it.

    Raises:
        UnfitDocument: it is neither, or too long.
    """
    if is_mark(given):
        raise UnfitDocument("`openapi` only says what a document is known by, and not here: give the document itself")
    if is_a_name(given):
        raise UnfitDocument(
            "`openapi` is neither a URL nor a document of OpenAPI: give its address, or its text in JSON or YAML "
            "(on the command line `openapi=@FILE`)"
        )
    if (data := _DATA.match(given)) is not None:
        try:
            reader = zlib.decompressobj(wbits=31)
            text = reader.decompress(base64.b64decode(given[data.end() :], validate=True), MAX_DOCUMENT_BYTES + 1)
        except (binascii.Error, ValueError, zlib.error):
            raise UnfitDocument("`openapi` is a `data:` URL, but what is in it is not gzip in Base64") from None
    else:
        text = given.encode("utf-8", "surrogatepass")
    if len(text) > MAX_DOCUMENT_BYTES:
        raise UnfitDocument(f"the document has more than {MAX_DOCUMENT_BYTES >> 20} MiB")
    return text
