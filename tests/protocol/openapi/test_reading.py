"""Texts become objects."""

import pytest

from app.protocol.openapi.document import UnfitDocument
from app.protocol.openapi.reading import read


def test_json_and_yaml():
    assert read(b'\xef\xbb\xbf{"openapi": "3.1.0"}') == {"openapi": "3.1.0"}
    assert read(b"{openapi: 3.1.0, paths: {}}") == {"openapi": "3.1.0", "paths": {}}
    text = b"a: &x {on: yes, day: 2026-01-02, t: true, n: 1}\nb: *x\nc:\n  <<: *x\n  n: 2\n"
    one = {"on": "yes", "day": "2026-01-02", "t": True, "n": 1}
    assert read(text) == {"a": one, "b": one, "c": {**one, "n": 2}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"openapi": "3.1.0"', r"not JSON: .*; the document is not YAML: .*line 2"),
        (b'{"a": 1}}}', "not JSON"),
        (b'{"openapi": "3.1.0",}}', r"not JSON: .*byte 20"),
        (b"{not: [yaml", r"not JSON: .*; the document is not YAML: .*line 2"),
        (b"\n <!DOCTYPE html>\n<html><body>a: b</body></html>", "this is HTML, not a document of OpenAPI"),
        (b"\xef\xbb\xbf<html lang='a: b'>", "this is HTML"),
        (b"openapi: [3.1.0\npaths: {}", r"not YAML.*line 2"),
        (b"a: b: c", "not YAML"),
        (b"\xff\xfe{\x00", "not in UTF-8"),
        (b"[1, 2]", "no object"),
        (b"openapi 3.1.0\n", "no object"),
        (b"", "no object"),
        (b"a: !!python/object:os.system {}", "not YAML"),
        (b"a\x00: 1", "not YAML"),
        (b'{"a":' * 100_000, "nested too deeply|not JSON"),
        (b"a: *none", "not YAML"),
    ],
)
def test_what_cannot_be_read_says_why(text, words):
    with pytest.raises(UnfitDocument, match=words):
        read(text)
