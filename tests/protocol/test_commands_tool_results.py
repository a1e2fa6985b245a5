import msgspec
import pytest

from app.protocol.commands import is_tool_error

LONG = b'"content":[{"type":"text","text":"%b"}]' % (b"x" * 1000)
DEEP = b"[" * 5000 + b"]" * 5000  # msgspec does not read it


@pytest.mark.parametrize(
    ("result", "is_error"),
    [
        (b'{%b,"isError":true,%b}' % (LONG, LONG.replace(b"content", b"_meta")), True),  # in the middle
        (b'{"isError" :\ttrue,%b}' % LONG, True),
        (rb'{"isErr\u006fr":true,%b}' % LONG, True),
        (rb'{"isError":true,"half an emoji":"\ud800"}', True),  # which msgspec does not read
        (rb'{"isErr\u006fr":true,"half an emoji":"\ud800"}', True),
        (b'{"x":%b,"isError":true}' % DEEP, True),
        (b'{"x":%b}' % DEEP, False),
        (b'{"isError":false,%b}' % LONG, False),
        (rb'{"structuredContent":{"isError":true},"text":"\"isError\":true"}', False),  # elsewhere
        (b'{"isError":1}', False),
        (b'{"isError":"true"}', False),
        (b"{}", False),
        (b"[true]", False),
        (b"", False),
    ],
)
def test_it_is_read_from_the_first_level_of_the_result(result: bytes, is_error: bool):
    assert is_tool_error(msgspec.Raw(result)) is is_error
