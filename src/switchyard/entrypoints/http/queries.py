"""Query parameters: parse them to typed values, or raise InvalidField with the parameter's name."""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import OrderId

# 10^12 seconds are the year 33658; 10^12 milliseconds are the year 2001.
_MILLISECONDS_FROM = 10**12
# 18 digits fit into the 64-bit integers of both databases.
_CURSOR = re.compile(r"(after|before):([0-9]{1,18})")
# As `Time` of the contract. No time near the ends of what Python can represent, so that arithmetic never overflows.
TIME = re.compile(
    r"[0-9]{1,11}(\.[0-9]{1,6})?|[1-9][0-9]{12,13}(\.[0-9]{1,6})?"
    r"|([1-8][0-9]|9[0-8])[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"(T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?(Z|[+ -]([01][0-9]|2[0-3]):[0-5][0-9])?)?"
)
_ORDER_ID = re.compile(r"ord_[0-9A-Z]{26}")
# A symbol or strategy with a currency.
_NAME_LENGTH_MAX = 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def only(query: Mapping[str, str], known: Collection[str]) -> None:
    """Reject unknown and empty parameters: a misspelt filter must not be ignored."""
    for name, value in query.items():
        if name not in known:
            raise InvalidField(name, f"unknown parameter; known are {', '.join(known)}")
        if not value:
            raise InvalidField(name, "must not be empty")


def whole_number(query: Mapping[str, str], name: str, default: int, low: int, high: int, *, digits_max: int = 9) -> int:
    """Return an integer from `low` to `high`."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= digits_max and low <= int(text) <= high):
        raise InvalidField(name, f"must be a whole number from {low} to {high}")
    return int(text)


def instant(query: Mapping[str, str], name: str) -> datetime | None:
    """Return a time, given as RFC 3339, as epoch seconds, or as epoch milliseconds from 10^12 on."""
    text = query.get(name)
    if text is None:
        return None
    try:
        if TIME.fullmatch(text) is None:
            raise ValueError
        if "-" not in text:
            number = Decimal(text)
            microseconds = int(number * (1_000 if number >= _MILLISECONDS_FROM else 1_000_000))
            return _EPOCH + timedelta(microseconds=microseconds)
        # An unescaped plus sign of a time zone arrives as a space.
        at = datetime.fromisoformat(text.replace(" ", "+"))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except ValueError:
        raise InvalidField(name, "must be an RFC 3339 time, or an epoch in seconds or milliseconds") from None


class EventCursor(NamedTuple):
    """Where a page of events begins, and in which direction it is read."""

    forward: bool
    number: int


def event_cursor(query: Mapping[str, str], name: str) -> EventCursor | None:
    """Return a place among events: `after:<id>` reads on from there, `before:<id>` reads back."""
    text = query.get(name)
    if text is None:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidField(name, "must be after:<event id> or before:<event id>")
    return EventCursor(found[1] == "after", int(found[2]))


def order_cursor(query: Mapping[str, str]) -> OrderId | None:
    """Return the last order of the page before, whose id is the cursor."""
    text = query.get("cursor")
    if text is not None and _ORDER_ID.fullmatch(text) is None:
        raise _no_cursor()
    return None if text is None else OrderId(text)


def name_cursor(query: Mapping[str, str]) -> str:
    """Return the last name of the page before, from the cursor `after:<name>`; empty for the first page."""
    text = query.get("cursor")
    if text is None:
        return ""
    prefix, _, name = text.partition(":")
    if prefix != "after" or not name or not name.isprintable() or len(name) > _NAME_LENGTH_MAX:
        raise _no_cursor()
    return name


def money_cursor(query: Mapping[str, str]) -> tuple[str, str]:
    """Return the last name and currency of the page before, from the cursor `after:<name>:<currency>`.

    Both are empty for the first page; a row of no strategy has an empty name.
    """
    text = name_cursor(query)
    name, separator, currency = text.rpartition(":")
    if text and (not separator or not currency):
        raise _no_cursor()
    return name, currency


def _no_cursor() -> InvalidField:
    return InvalidField("cursor", "must be the nextCursor of the previous page, unchanged")


def choices(query: Mapping[str, str], name: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the words of a comma-separated list; each must be a known one."""
    text = query.get(name)
    if text is None:
        return ()
    words = tuple(text.split(","))
    for word in words:
        if word not in known:
            raise InvalidField(name, f"must be among {', '.join(known)}")
    return words
