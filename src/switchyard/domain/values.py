"""The values of requests and files: decimals, labels, typed fields, and their canonical JSON and digests.

Every number from outside becomes a canonical `Decimal` here, and every name and label is checked here. Pure
functions.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from switchyard.domain.errors import InvalidField

# Eight decimals are the finest step of the supported markets (one satoshi); more is an error of the caller.
DECIMALS_MAX = 8
# Larger than any real order; the bound keeps products within the digits of the contexts below.
AMOUNT_LIMIT = Decimal(10) ** 15
# A product of two amounts needs at most 46 digits, a sum of a million of them 52.
EXACT = Context(prec=60, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
ROUNDED = Context(prec=60, rounding=ROUND_HALF_EVEN, traps=[InvalidOperation, DivisionByZero, Overflow])

ZERO = Decimal(0)
ONE = Decimal(1)
_SMALLEST = Decimal(1).scaleb(-DECIMALS_MAX)


def canonical(value: Decimal) -> Decimal:
    """The number in canonical form: no trailing zeros, no exponent above zero, no minus zero."""
    if not value:
        return ZERO
    if value.same_quantum(ONE):
        return value  # most amounts are whole numbers without an exponent
    whole = value.to_integral_value()
    return EXACT.quantize(whole, ONE) if value == whole else EXACT.normalize(value)


def plain(value: Decimal) -> str:
    """The number as text without an exponent; equal numbers have equal texts."""
    return format(canonical(value), "f")


def fixed(value: Decimal) -> str:
    """The number as text with eight decimals, rounded half to even."""
    return format(ROUNDED.quantize(value, _SMALLEST), "f")


def positive_amount(value: Decimal, field: str) -> Decimal:
    """The amount in canonical form; raises InvalidField where it is not a positive amount within the bounds."""
    if not value.is_finite():
        raise InvalidField(field, "must be a finite number")
    if value <= 0:
        raise InvalidField(field, "must be greater than 0")
    if value >= AMOUNT_LIMIT:
        raise InvalidField(field, f"must be less than {AMOUNT_LIMIT:f}")
    try:
        EXACT.quantize(value, _SMALLEST)
    except Inexact:
        raise InvalidField(field, f"at most {DECIMALS_MAX} decimals") from None
    return canonical(value)


def signed_amount(value: Decimal, field: str) -> Decimal:
    """An amount that may be zero or negative, such as a fee, in canonical form; raises InvalidField out of bounds."""
    return canonical(value) if value.is_zero() else positive_amount(value.copy_abs(), field).copy_sign(value)


def is_multiple(value: Decimal, step: Decimal) -> bool:
    """Whether the value is a whole number of steps."""
    return not EXACT.remainder(value, step)


def share(total: Decimal, part: Decimal, whole: Decimal) -> Decimal:
    """`part / whole` of a total, rounded to eight decimals; exactly the total where the part is the whole."""
    if part == whole:
        return total
    return canonical(ROUNDED.quantize(ROUNDED.divide(ROUNDED.multiply(total, part), whole), _SMALLEST))


def average(notional: Decimal, qty: Decimal) -> Decimal:
    """Notional per unit, rounded to eight decimals."""
    return canonical(ROUNDED.quantize(ROUNDED.divide(notional, qty), _SMALLEST))


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


LABEL_LENGTH_MAX = 128
STRATEGY = re.compile(r"[a-z0-9._-]{1,64}")
SYMBOL_LENGTH_MAX = 32
SYMBOL = re.compile(r"[A-Z0-9][A-Z0-9._/:-]{0,31}")
# Visible ASCII without quotes, slashes and backslashes.
_ACCOUNT = re.compile(r"[!#-&(-.0-\[\]-~]{1,64}")
# The account id of events that belong to no account.
_SYSTEM_ACCOUNT = "-"
# Characters without a glyph that Python calls printable: fillers, joiners and variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_account(text: str) -> bool:
    """Whether the text can be an account id."""
    return text != _SYSTEM_ACCOUNT and _ACCOUNT.fullmatch(text) is not None


def check_label(field: str, text: str, length_max: int = LABEL_LENGTH_MAX) -> None:
    """Raise InvalidField unless the label is short, visible, in NFC and without white space around it."""
    if not text:
        raise InvalidField(field, "must not be empty")
    if len(text) > length_max:
        raise InvalidField(field, f"at most {length_max} characters, got {len(text)}")
    if not text.isprintable():  # also false for control, format and bidirectional characters, and for lone surrogates
        raise InvalidField(field, "must consist of printable characters, without control or formatting characters")
    if text[0] == " " or text[-1] == " ":
        raise InvalidField(field, "must not begin or end with a space")
    if text.isascii():
        return
    if _INVISIBLE.search(text) or unicodedata.combining(text[0]):
        raise InvalidField(field, "must not contain invisible characters or begin with a combining mark")
    if not unicodedata.is_normalized("NFC", text):
        raise InvalidField(field, "must be in Unicode normalization form C (NFC)")


def check_strategy(text: str) -> None:
    """Raise InvalidField unless the text can be the name of a strategy."""
    if not STRATEGY.fullmatch(text):
        raise InvalidField("strategy", f"must match {STRATEGY.pattern}")


# Members that identify the caller, not the request: requests that differ only here are the same request.
IDENTITY_FREE_MEMBERS = frozenset({"trace_id"})

_string = json.encoder.encode_basestring  # keeps non-ASCII characters, as ensure_ascii=False does


def canonical_json(value: Any) -> str:
    """JSON with sorted members, no white space, canonical decimals and strings in NFC."""
    match value:
        case str():
            return _string(value if value.isascii() else unicodedata.normalize("NFC", value))
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return plain(value)
        case Mapping():
            members = [
                f"{canonical_json(name)}:{canonical_json(value[name])}"
                for name in sorted(value)
                if name not in IDENTITY_FREE_MEMBERS
            ]
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join([canonical_json(item) for item in value]) + "]"
        case _:
            raise TypeError(f"not a JSON value: {type(value).__name__}")


def digest(value: Any) -> str:
    """`sha256:` and the hex digest of the canonical JSON."""
    data = _plain_object(value) or canonical_json(value).encode()
    return "sha256:" + hashlib.sha256(data).hexdigest()


def struct_digest(value: msgspec.Struct) -> str:
    """The same for a struct whose decimals are in canonical form already."""
    data = _sorted.encode(value)
    if not _is_canonical(data):
        data = canonical_json(msgspec.to_builtins(value, builtin_types=(Decimal,))).encode()
    return "sha256:" + hashlib.sha256(data).hexdigest()


_sorted = msgspec.json.Encoder(order="sorted", decimal_format="number")
_PLAIN = (str, int, Decimal, type(None))


def _plain_object(value: Any) -> bytes | None:
    """A fast path for small flat requests, ten times faster than `canonical_json`; none where it does not apply."""
    if type(value) is not dict:
        return None
    members = {}
    for name, member in value.items():
        kind = type(member)
        if kind not in _PLAIN:
            return None
        members[name] = canonical(member) if kind is Decimal else member
    data = _sorted.encode(members)
    return data if _is_canonical(data) and IDENTITY_FREE_MEMBERS.isdisjoint(members) else None


def _is_canonical(data: bytes) -> bool:
    """Whether the encoder wrote the same as `canonical_json`: no escapes, non-ASCII text, exponents below zero."""
    # `find`, because `in` first takes its operand for a number and makes an exception.
    return data.isascii() and data.find(b"\\") < 0 and data.find(b"E-") < 0
