"""Identifiers: ULIDs for orders, derived client order ids for venues."""

import hashlib
from functools import lru_cache
from typing import NewType

OrderId = NewType("OrderId", str)
AccountId = NewType("AccountId", str)
# The client order id (ClOrdID) that a venue sees; never the caller's own clientOrderId.
VenueClientOrderId = NewType("VenueClientOrderId", str)
VenueName = NewType("VenueName", str)
WorkerId = NewType("WorkerId", str)

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two characters per ten bits: one shift and one lookup instead of two of each.
_PAIRS = [a + b for a in _CROCKFORD for b in _CROCKFORD]
ULID_RANDOM_BITS = 80
_RANDOM_SHIFTS = range(ULID_RANDOM_BITS - 10, -1, -10)
# Separates the parts. Accounts and keys have visible characters only, so no other split gives the same text.
_BORDER = "\x1f"


def ulid(milliseconds: int, random_bits: int) -> str:
    """26 characters that sort by time; the caller passes the time and the random bits."""
    pairs = _PAIRS
    return _time_text(milliseconds) + "".join([pairs[(random_bits >> shift) & 1023] for shift in _RANDOM_SHIFTS])


@lru_cache(maxsize=1)  # hundreds of ids may be made in one millisecond
def _time_text(milliseconds: int) -> str:
    return "".join([_PAIRS[(milliseconds >> shift) & 1023] for shift in range(40, -1, -10)])


def order_id(milliseconds: int, random_bits: int) -> OrderId:
    """A new order id."""
    return OrderId("ord_" + ulid(milliseconds, random_bits))


def venue_client_order_id(
    account: AccountId, operation: str, key: str | None, generation: int, order: OrderId
) -> VenueClientOrderId:
    """The client order id at the venue: 32 characters, the same after a retry, a restart and a restore.

    Without an idempotency key it is derived from the order's own id.
    """
    intent = ("order", order) if key is None else ("key", account, operation, key, str(generation))
    return VenueClientOrderId(hashlib.sha256(_BORDER.join(intent).encode()).hexdigest()[:32])
