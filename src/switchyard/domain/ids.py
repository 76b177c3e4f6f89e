"""Names of things: ULIDs for our own, derived ids for what a venue sees."""

import hashlib
from functools import lru_cache
from typing import NewType

OrderId = NewType("OrderId", str)
AccountId = NewType("AccountId", str)
# What we call an order towards a venue; never the caller's own clientOrderId.
VenueClientOrderId = NewType("VenueClientOrderId", str)
VenueName = NewType("VenueName", str)
WorkerId = NewType("WorkerId", str)

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two characters per ten bits: one table lookup instead of two shifts and two lookups.
_PAIRS = [a + b for a in _CROCKFORD for b in _CROCKFORD]
ULID_RANDOM_BITS = 80
_RANDOM_SHIFTS = range(ULID_RANDOM_BITS - 10, -1, -10)
# Stands in no account and no key, since both consist of visible characters: the border between two parts cannot move.
_BORDER = "\x1f"


def ulid(milliseconds: int, random_bits: int) -> str:
    """26 characters that sort by time; the caller brings the clock and the randomness."""
    pairs = _PAIRS
    return _time_text(milliseconds) + "".join([pairs[(random_bits >> shift) & 1023] for shift in _RANDOM_SHIFTS])


@lru_cache(maxsize=1)  # hundreds of ids may fall into one millisecond
def _time_text(milliseconds: int) -> str:
    return "".join([_PAIRS[(milliseconds >> shift) & 1023] for shift in range(40, -1, -10)])


def order_id(milliseconds: int, random_bits: int) -> OrderId:
    """A fresh order id."""
    return OrderId("ord_" + ulid(milliseconds, random_bits))


def venue_client_order_id(
    account: AccountId, operation: str, key: str | None, generation: int, order: OrderId
) -> VenueClientOrderId:
    """The id a venue knows an order by: 32 characters that a retry, a restart and a restore derive again.

    Without a key nothing but the order's own id identifies the intent.
    """
    intent = ("order", order) if key is None else ("key", account, operation, key, str(generation))
    return VenueClientOrderId(hashlib.sha256(_BORDER.join(intent).encode()).hexdigest()[:32])
