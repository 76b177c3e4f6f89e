"""Request bodies: strict JSON, read up to a limit."""

import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from switchyard.domain.errors import BodyTooLarge, InvalidJson
from switchyard.domain.values import canonical_json
from switchyard.entrypoints.http.transport.bodies import DEPTH_MAX, ClientGone, parse_object, read_body

# Any character but a lone surrogate, which a Python string can hold and UTF-8 cannot encode.
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
objects = st.dictionaries(texts, values, max_size=6)


def as_float(value: Any) -> Any:
    """Convert decimals to floats, as `json.loads` returns them."""
    match value:
        case Decimal():
            return float(value)
        case dict():
            return {name: as_float(member) for name, member in value.items()}
        case list():
            return [as_float(item) for item in value]
        case _:
            return value


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_valid_json_is_parsed_as_by_the_standard_library(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert as_float(parse_object(text.encode())) == json.loads(text)


@given(st.binary())
def test_random_bytes_raise_nothing_but_invalid_json(body: bytes) -> None:
    try:
        parse_object(body)
    except InvalidJson as error:
        error.message.encode()


@given(objects, st.data())
def test_damaged_json_raises_nothing_but_invalid_json(value: dict[str, Any], data: st.DataObject) -> None:
    body = bytearray(json.dumps(value).encode())
    position = data.draw(st.integers(0, len(body) - 1))
    body[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        parse_object(bytes(body))
    except InvalidJson as error:
        error.message.encode()


def test_fractions_become_exact_decimals_and_integers_stay_integers() -> None:
    parsed = parse_object(b'{"price":0.1,"large":123456789012345678901234567890.123,"power":1e3,"qty":100}')
    assert parsed == {
        "price": Decimal("0.1"),
        "large": Decimal("123456789012345678901234567890.123"),
        "power": Decimal(1000),
        "qty": 100,
    }
    assert type(parsed["qty"]) is int


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"qty":1,"qty":2}', "qty"),
        (b'{"qty" :1,"qty":2}', "qty"),
        (b'{"qty"\n:1,"a":":","qty":2}', "qty"),
        (b'{"qty":1,"price":2,"qty":1}', "qty"),
        (b'{"a":[{"deep":{"x":1,"x":null}}]}', "x"),
        (b'{"qty":1,"\\u0071ty":2}', "qty"),
        (b'{"":1,"":2}', "''"),
        ('{"é":1,"é":2}'.encode(), "é"),
    ],
)
def test_a_duplicate_member_is_named(body: bytes, name: str) -> None:
    with pytest.raises(InvalidJson, match=f"duplicate member.*{name}"):
        parse_object(body)


def test_the_error_shows_only_the_start_of_a_long_member_name() -> None:
    with pytest.raises(InvalidJson) as caught:
        parse_object(b'{"%b":1,"%b":2}' % (b"x" * 10_000, b"x" * 10_000))
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "1e" + "9" * 30])
def test_numbers_beyond_the_range_of_a_double_are_rejected(number: str) -> None:
    with pytest.raises(InvalidJson):
        parse_object(f'{{"price":{number}}}'.encode())


@pytest.mark.parametrize("number", ["9" * 60_000, "-" + "9" * 5_000, "0x10", "01", "+1", ".5", "1.", "1_000", "١"])
def test_malformed_numbers_are_rejected(number: str) -> None:
    with pytest.raises(InvalidJson):
        parse_object(f'{{"qty":{number}}}'.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"[{}]",
        b'"text"',
        b"1",
        b"null",
        b"{}{}",
        b"{} x",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a"}',
        b"{a:1}",
        b'{"a":"\n"}',
        b'{"a":"\x00"}',
        b'{"a":"\\x41"}',
        b'{"a":1}\x00',
        b'{"a":1 // one\n}',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        '{"a":"é"}'.encode("latin-1"),
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"a":["\\ud800\\ud800"]}',
        b'{"\\ud800":1,"\\ud800":2}',
    ],
)
def test_a_body_that_is_not_one_valid_json_object_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidJson) as caught:
        parse_object(body)
    caught.value.message.encode()


def test_escapes_of_valid_characters_are_decoded() -> None:
    assert parse_object(b'{"a":"\\ud83d\\ude00\\u0000\\u00e9"}') == {"a": "\N{GRINNING FACE}\0é"}


def test_nesting_is_limited() -> None:
    assert canonical_json(parse_object(nested(DEPTH_MAX))).encode() == nested(DEPTH_MAX)
    for body in (nested(DEPTH_MAX + 1), nested(10_000), b'{"a":' + b"[" * 60_000, b'{"a":' * 12_000):
        with pytest.raises(InvalidJson):
            parse_object(body)


def test_wide_values_and_brackets_in_strings_do_not_count_as_nesting() -> None:
    wide = {"tags": ["[{" * 100], "rows": [{"row": []} for _ in range(1000)]}
    assert parse_object(json.dumps(wide).encode()) == wide


def receiver(*messages: Message) -> Callable[[], Awaitable[Message]]:
    remaining = iter(messages)

    async def receive() -> Message:
        return next(remaining)

    return receive


def piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    "messages",
    [
        [piece(b"12345", more=False)],
        [piece(b"123", more=True), piece(b"45", more=False)],
        [piece(b"", more=True), piece(b"12345", more=True), piece(b"", more=False)],
    ],
)
async def test_a_body_up_to_the_limit_is_read_whole(messages: list[Message]) -> None:
    assert await read_body(receiver(*messages), 5) == b"12345"


async def test_a_request_without_a_body_has_an_empty_body() -> None:
    assert await read_body(receiver({"type": "http.request"}), 5) == b""


@pytest.mark.parametrize(
    "messages",
    [
        [piece(b"123456", more=False)],
        [piece(b"123456", more=True)],
        [piece(b"123", more=True), piece(b"456", more=True)],
    ],
)
async def test_a_body_over_the_limit_is_rejected_before_it_ends(messages: list[Message]) -> None:
    with pytest.raises(BodyTooLarge, match="5 bytes"):
        await read_body(receiver(*messages), 5)


@pytest.mark.parametrize("messages", [[GONE], [piece(b"1", more=True), GONE]])
async def test_a_client_that_disconnects_raises_client_gone(messages: list[Message]) -> None:
    with pytest.raises(ClientGone):
        await read_body(receiver(*messages), 5)
