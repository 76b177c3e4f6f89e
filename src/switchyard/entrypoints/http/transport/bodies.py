"""Request bodies: read within a bound, and parsed so that they mean the same to everyone."""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, Never

import msgspec
from starlette.types import Receive

from switchyard.domain.errors import BodyTooLarge, InvalidJson

BODY_BYTES_MAX = 64 * 1024
# No contract of ours goes deeper than 4; what recurses over a body later is safe at this depth.
DEPTH_MAX = 32
# A little over what a double can hold. Beyond it most parsers read infinity or zero, and writing the number out would
# take as many characters as its exponent says.
EXPONENT_MAX = 400
_SHOWN_LENGTH_MAX = 64
WHITE_SPACE = " \t\n\r"


class ClientGone(Exception):
    """The client hung up before its body was complete; there is nobody left to answer."""


async def read_body(receive: Receive, limit_bytes: int = BODY_BYTES_MAX) -> bytes:
    """The whole body, or BodyTooLarge as soon as it is."""
    message = await receive()
    body: bytes = message.get("body", b"")
    # Nearly every body arrives in one message; only the others pay for collecting.
    if message["type"] == "http.request" and not message.get("more_body") and len(body) <= limit_bytes:
        return body
    collected = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        collected += message.get("body", b"")
        if len(collected) > limit_bytes:
            raise BodyTooLarge(f"the body is limited to {limit_bytes} bytes")
        if not message.get("more_body"):
            return bytes(collected)
        message = await receive()


def parse_object(body: bytes) -> dict[str, Any]:
    """One JSON object with unique members, its fractions as exact decimals, or InvalidJson."""
    return _plain_object(body) or _any_object(body)


def _plain_object(body: bytes) -> dict[str, Any] | None:
    """The usual small request at a fifth of the price; none where it takes more care, or is wrong.

    The fast decoder keeps the last of two equal members. Each member has a colon, so with no more colons than members
    left there was no second one; a nested object or a colon within a string is looked at with care.
    """
    try:
        value = _FAST.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidJson):
        return None
    if type(value) is not dict or body.count(b":") != len(value) or body.count(b"[") > DEPTH_MAX:
        return None
    # Integers beyond 64 bits come as floats.
    return None if any(type(member) is float for member in value.values()) else value


def _any_object(body: bytes) -> dict[str, Any]:
    try:
        # The scanner itself: what `decode` adds, two searches for white space, costs as much as the parsing.
        text = body.decode().strip(WHITE_SPACE)
        value, end = _DECODER.scan_once(text, 0)  # type: ignore[attr-defined]
        if end != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        # Neither is common, and looking through the whole value is not free.
        if body.count(b"{") + body.count(b"[") > DEPTH_MAX or b"\\u" in body:
            _check(value, DEPTH_MAX)
    except UnicodeDecodeError as error:
        raise InvalidJson(f"not UTF-8 at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise InvalidJson("half of a surrogate pair is not a character") from error
    except RecursionError as error:
        raise InvalidJson("nested too deeply") from error
    except StopIteration as error:
        raise InvalidJson("not a JSON value") from error
    except json.JSONDecodeError as error:
        raise InvalidJson(f"{error.msg} at line {error.lineno} column {error.colno}") from error
    except ValueError as error:
        # The one other complaint of the decoder: Python rejects to read integers of thousands of digits.
        raise InvalidJson("an integer has too many digits") from error
    if type(value) is not dict:
        raise InvalidJson("must be one JSON object")
    return value


def _check(value: object, levels_left: int) -> None:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict | list):
        if not levels_left:
            raise InvalidJson(f"nested more than {DEPTH_MAX} levels deep")
        for item in value:
            _check(item, levels_left - 1)
        if isinstance(value, dict):
            for item in value.values():
                _check(item, levels_left - 1)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidJson(f"duplicate member {name[:_SHOWN_LENGTH_MAX]!r}")
            seen.add(name)
    return members


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise InvalidJson("a number is out of range") from None
    if abs(number.adjusted()) > EXPONENT_MAX:
        raise InvalidJson("a number is out of range")
    return number


def _reject_constant(name: str) -> Never:
    raise InvalidJson(f"{name} is not a JSON number")


_FAST = msgspec.json.Decoder(float_hook=_decimal)
_DECODER = json.JSONDecoder(object_pairs_hook=_unique_members, parse_float=_decimal, parse_constant=_reject_constant)
