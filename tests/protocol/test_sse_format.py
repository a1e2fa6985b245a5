"""Server-sent events: nothing a backend writes can forge an event (HTML standard, 9.2.6)."""

import json

from app.protocol.sse_format import encode_endpoint, encode_message


def test_a_message_is_one_event_with_one_data_line() -> None:
    assert encode_message(b'{"a":1}') == b'event: message\ndata: {"a":1}\n\n'


def test_line_breaks_between_tokens_do_not_split_the_event() -> None:
    event = encode_message(b'{"a":\r1,\n"b":"data: x"}')
    assert event == b'event: message\ndata: {"a":1,"b":"data: x"}\n\n'


def test_line_separators_inside_strings_are_escaped_and_mean_the_same() -> None:
    text = "a\u2028b\u2029c\u0085d\\\u2028é"
    payload = json.dumps({"text": text}, ensure_ascii=False).encode()
    event = encode_message(payload)
    line = event.decode().split("\n")[1]
    assert len(line.splitlines()) == 1
    assert json.loads(line.removeprefix("data: ")) == {"text": text}


def test_the_endpoint_event_names_a_path_on_the_same_origin() -> None:
    assert encode_endpoint("/t/a/b/messages?sessionId=x").startswith(b"event: endpoint\ndata: /t/a/b/")
