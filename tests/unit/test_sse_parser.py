"""The parser of server-sent events: chunk boundaries, malformed input and size limits."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.client.sse import MESSAGE_LENGTH_MAX, Message, MessageTooLong, Parser

STREAM = (
    "\ufeff: hello\r\n\r\nevent: ready\ndata: {}\n\n"
    "id: 7\revent: order_update\rdata: {\rdata: }\r\r"
    "id: 8\r\nevent: order_update\r\ndata: ¥ € 😀\r\n\r\nid: 9\ndata: never ended\n"
).encode()
MESSAGES = [
    Message(event="ready", data="{}", id="6"),
    Message(event="order_update", data="{\n}", id="7"),
    Message(event="order_update", data="¥ € 😀", id="8"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_messages_do_not_depend_on_chunk_boundaries(cuts: list[int]) -> None:
    parser = Parser(last_event_id="6")
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(places)]
    assert [message for chunk in chunks for message in parser.feed(chunk)] == MESSAGES


def test_the_stream_may_arrive_byte_by_byte() -> None:
    parser = Parser(last_event_id="6")
    assert [message for byte in STREAM for message in parser.feed(bytes([byte]))] == MESSAGES


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("data:tight", "tight"),
        ("data: one space is removed", "one space is removed"),
        ("data:  one of two is removed", " one of two is removed"),
        ("data", ""),
        ("data: a: b: c", "a: b: c"),
        ("data: 1\ndata\ndata: 3", "1\n\n3"),
        ("unknown: field\ndata: kept", "kept"),
        ("Data: field names are case-sensitive\ndata: kept", "kept"),
        (": a comment\ndata: kept", "kept"),
    ],
)
def test_fields_are_parsed_as_the_standard_specifies(text: str, data: str) -> None:
    assert Parser().feed(f"{text}\n\n".encode()) == [Message(data=data)]


def test_a_block_without_data_is_not_a_message_but_sets_the_id() -> None:
    assert Parser().feed(b"event: lost\nid: 5\n\ndata: next\n\n") == [Message(data="next", id="5")]


def test_an_id_applies_to_later_messages_until_an_empty_id_clears_it() -> None:
    messages = Parser().feed(b"id: 5\ndata: a\n\ndata: b\n\nid\ndata: c\n\n")
    assert [message.id for message in messages] == ["5", "5", None]


def test_an_id_with_a_nul_is_ignored() -> None:
    assert Parser("4").feed(b"id: 5\0\ndata: a\n\n") == [Message(data="a", id="4")]


def test_an_incomplete_message_is_not_delivered() -> None:
    assert Parser().feed(b"id: 5\ndata: half of it\n") == []


def test_a_retry_delay_must_be_a_whole_number_of_milliseconds() -> None:
    parser = Parser()
    parser.feed(b"retry: soon\nretry: -1\nretry: 1.5\n")
    assert parser.retry_seconds is None
    parser.feed(b"retry: 1500\n")
    assert parser.retry_seconds == 1.5


def test_an_invalid_byte_becomes_one_replacement_character() -> None:
    assert Parser().feed(b"data: a\xffb\n\n") == [Message(data="a\ufffdb")]


def test_a_message_beyond_the_size_limit_is_rejected() -> None:
    parser = Parser()
    with pytest.raises(MessageTooLong):
        for _ in range(MESSAGE_LENGTH_MAX // 65_536 + 1):
            parser.feed(b"data: " + b"x" * 65_536 + b"\n")


def test_comments_do_not_count_toward_the_size_limit() -> None:
    parser = Parser()
    for _ in range(100):
        assert parser.feed(b": " + b"x" * 65_536 + b"\n") == []
    assert parser.feed(b"data: still here\n\n") == [Message(data="still here")]
