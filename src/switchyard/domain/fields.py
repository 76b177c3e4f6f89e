"""Converts the fields of a request's body to their types; an error names the first wrong field."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from switchyard.domain.errors import InvalidField

# msgspec also converts quoted decimals; the contracts allow numbers only.
_NUMBERS = (int, Decimal, type(None))
_FIELD = re.compile(r"at `\$([^`]*)`|field `([^`]*)`")
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
        raise _named(error) from None


def _named(error: msgspec.ValidationError) -> InvalidField:
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
    return InvalidField(field, text.partition(" - at ")[0])
