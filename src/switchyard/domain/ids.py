"""Names of things: ULIDs for our own, derived ids for what a venue sees."""

import hashlib
from typing import NewType

OrderId = NewType("OrderId", str)
AccountId = NewType("AccountId", str)
# What we call an order towards a venue; never the caller's own clientOrderId.
VenueClientId = NewType("VenueClientId", str)
VenueName = NewType("VenueName", str)
WorkerId = NewType("WorkerId", str)

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two characters per ten bits: one table lookup instead of two shifts and two lookups.
_PAIRS = [a + b for a in _CROCKFORD for b in _CROCKFORD]
ULID_RANDOM_BITS = 80


def ulid(milliseconds: int, random_bits: int) -> str:
    """26 characters that sort by time; the caller brings the clock and the randomness."""
    value = (milliseconds << ULID_RANDOM_BITS) | random_bits
    pairs = _PAIRS
    return "".join([pairs[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def order_id(milliseconds: int, random_bits: int) -> OrderId:
    """A fresh order id."""
    return OrderId("ord_" + ulid(milliseconds, random_bits))


def venue_client_id(
    account: AccountId, operation: str, key: str | None, generation: int, order: OrderId
) -> VenueClientId:
    """The id a venue knows an order by: 32 characters that a retry, a restart and a restore derive again.

    Without a key nothing but the order's own id identifies the intent.
    """
    parts = ("order", order) if key is None else ("key", account, operation, key, str(generation))
    framed = "".join(f"{len(part)}:{part}" for part in parts)
    return VenueClientId(hashlib.sha256(framed.encode()).hexdigest()[:32])
