"""The stream parser, fed with everything that a network may do to a stream."""

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
def test_messages_do_not_depend_on_where_the_bytes_were_cut(cuts: list[int]) -> None:
    parser = Parser(last_event_id="6")
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(places)]
    assert [message for chunk in chunks for message in parser.feed(chunk)] == MESSAGES


def test_every_single_byte_may_arrive_alone() -> None:
    parser = Parser(last_event_id="6")
    assert [message for byte in STREAM for message in parser.feed(bytes([byte]))] == MESSAGES


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("data:tight", "tight"),
        ("data: one space is the format's", "one space is the format's"),
        ("data:  two leave one", " two leave one"),
        ("data", ""),
        ("data: a: b: c", "a: b: c"),
        ("data: 1\ndata\ndata: 3", "1\n\n3"),
        ("unknown: field\ndata: kept", "kept"),
        ("Data: names have a case\ndata: kept", "kept"),
        (": a comment\ndata: kept", "kept"),
    ],
)
def test_fields_are_read_as_the_standard_says(text: str, data: str) -> None:
    assert Parser().feed(f"{text}\n\n".encode()) == [Message(data=data)]


def test_a_block_without_data_is_no_message_but_its_id_counts() -> None:
    assert Parser().feed(b"event: lost\nid: 5\n\ndata: next\n\n") == [Message(data="next", id="5")]


def test_an_id_holds_for_the_messages_after_it_until_an_empty_one_clears_it() -> None:
    messages = Parser().feed(b"id: 5\ndata: a\n\ndata: b\n\nid\ndata: c\n\n")
    assert [message.id for message in messages] == ["5", "5", None]


def test_an_id_with_a_nul_is_ignored() -> None:
    assert Parser("4").feed(b"id: 5\0\ndata: a\n\n") == [Message(data="a", id="4")]


def test_a_cut_message_is_never_delivered() -> None:
    assert Parser().feed(b"id: 5\ndata: half of it\n") == []


def test_the_server_may_ask_for_a_pause_in_whole_milliseconds_only() -> None:
    parser = Parser()
    parser.feed(b"retry: soon\nretry: -1\nretry: 1.5\n")
    assert parser.retry_seconds is None
    parser.feed(b"retry: 1500\n")
    assert parser.retry_seconds == 1.5


def test_bytes_that_are_no_text_spoil_one_character_and_not_the_stream() -> None:
    assert Parser().feed(b"data: a\xffb\n\n") == [Message(data="a\ufffdb")]


def test_a_message_without_end_is_rejected_before_it_fills_the_memory() -> None:
    parser = Parser()
    with pytest.raises(MessageTooLong):
        for _ in range(MESSAGE_LENGTH_MAX // 65_536 + 1):
            parser.feed(b"data: " + b"x" * 65_536 + b"\n")


def test_keepalives_may_go_on_for_ever() -> None:
    parser = Parser()
    for _ in range(100):
        assert parser.feed(b": " + b"x" * 65_536 + b"\n") == []
    assert parser.feed(b"data: still here\n\n") == [Message(data="still here")]
