"""Converts the fields of a request's body to their types; an error names the first wrong field."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from switchyard.domain.errors import InvalidField

# msgspec also converts quoted decimals; the contracts allow numbers only.
_NUMBERS = (int, Decimal, type(None))
_FIELD = re.compile(r"at `\$([^`]*)`|field `([^`]*)`")
_WRONG_CHOICE = "Invalid enum value"
_INDEX = re.compile(r"\[[^\]]*\]")

T = TypeVar("T")


def require_numbers(body: Mapping[str, Any], names: Sequence[str], *, within: str = "") -> None:
    """Raise InvalidField for the first of these fields that is present and not a number."""
    for name in names:
        if type(body.get(name)) not in _NUMBERS:
            raise InvalidField(within + name, "must be a number")


def converted(body: Mapping[str, Any], kind: type[T]) -> T:
    """The body as `kind`; raises InvalidField for the first field that does not fit."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _named(error, kind) from None


def _named(error: msgspec.ValidationError, kind: type) -> InvalidField:
    text = str(error)
    place, member = "", None
    for found in _FIELD.finditer(text):
        place, member = found[1] or place, found[2] or member
    place = _INDEX.sub("", place).removeprefix(".")
    field = ".".join(filter(None, (place, member))) or "body"
    if "missing required field" in text:
        return InvalidField(field, "required")
    if "unknown field" in text:
        return InvalidField(field, "unknown field")
    message = text.partition(" - at ")[0]
    if message.startswith(_WRONG_CHOICE) and (choices := _choices(kind, field)):
        return InvalidField(field, f"must be one of {', '.join(choices)}")
    return InvalidField(field, message)


def _choices(kind: type, field: str) -> list[str]:
    """The values that a field of the body itself may have; none if it is not such a field."""
    info = msgspec.inspect.type_info(kind)
    members = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    types = [member.type for member in members if member.encode_name == field]
    types = [each for one in types for each in (one.types if isinstance(one, msgspec.inspect.UnionType) else (one,))]
    return [str(value) for one in types if isinstance(one, msgspec.inspect.LiteralType) for value in one.values]
