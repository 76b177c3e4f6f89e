"""Query parameters: typed, or rejected by name."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

from switchyard.domain.errors import InvalidField

# Seconds of that size would be the year 33658; as milliseconds it is 2001.
_MILLISECONDS_FROM = 10**12
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def only(query: Mapping[str, str], known: Collection[str]) -> None:
    """Reject a parameter that nobody reads or that says nothing: a misspelt filter must not pass for none."""
    for name, value in query.items():
        if name not in known:
            raise InvalidField(name, "unknown parameter")
        if not value:
            raise InvalidField(name, "must not be empty")


def whole_number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """An integer within its bounds."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise InvalidField(name, f"must be a whole number from {low} to {high}")
    return int(text)


def instant(query: Mapping[str, str], name: str) -> datetime | None:
    """A time: ISO 8601, or an epoch in seconds, or in milliseconds from 10^12 on."""
    text = query.get(name)
    if text is None:
        return None
    try:
        number = Decimal(text) if text.replace(".", "", 1).isdigit() else None
        if number is not None:
            microseconds = int(number * (1_000 if number >= _MILLISECONDS_FROM else 1_000_000))
            return _EPOCH + timedelta(microseconds=microseconds)
        # A plus sign that nobody escaped arrives as a blank.
        at = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError, InvalidOperation):
        raise InvalidField(name, "must be an ISO 8601 time or an epoch") from None


def choices(query: Mapping[str, str], name: str, known: Collection[str]) -> tuple[str, ...]:
    """A comma-separated list of known words."""
    text = query.get(name)
    if text is None:
        return ()
    words = tuple(text.split(","))
    for word in words:
        if word not in known:
            raise InvalidField(name, f"must be among {', '.join(known)}")
    return words
