"""Entries of the key store: one key, one order. Also the public names of `derived_keys`."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from switchyard.domain.derived_keys import generate_idempotency_key, validate_idempotency_key
from switchyard.domain.errors import InvalidKey
from switchyard.domain.ids import AccountId, OrderId

__all__ = [
    "AMEND_ORDER",
    "CANCEL_ALL",
    "CLOSE_POSITION",
    "DERIVED_AMEND",
    "DERIVED_CLOSE",
    "DERIVED_ORDER",
    "DO_ORDER",
    "KEY_LENGTH_MAX",
    "PLACE_ORDER",
    "KeyEntry",
    "KeyResult",
    "checked_key",
    "counted_from",
    "generate_idempotency_key",
    "is_lost_key_alive",
    "validate_idempotency_key",
]

KEY_LENGTH_MAX = 255
PLACE_ORDER = "orders"
DERIVED_ORDER = "orders.derived"
DO_ORDER = "do.order"
AMEND_ORDER = "orders.amend"
DERIVED_AMEND = "orders.amend.derived"
CLOSE_POSITION = "positions.close"
DERIVED_CLOSE = "positions.close.derived"
CANCEL_ALL = "orders.cancel_all"
KeyStatus = Literal["accepted", "succeeded", "failed"]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The first request with a key; its primary key is (account, operation, key)."""

    account_id: AccountId
    operation: str
    idempotency_key: str
    generation: int
    """0 for the first order of the key; one more each time the key is reused, after expiry or a proven unsent order."""
    order_id: OrderId
    request_digest: str
    created_at: datetime
    expires_at: datetime
    status: KeyStatus = "accepted"
    http_status: int | None = None
    """With the body below: the final answer to a `/do/order` request, which every repeat gets again."""
    response_payload_json: str | None = None
    result_digest: str | None = None
    version: int = 1
    """A write of version n needs version n-1 in the database, or no row for n = 1."""

    def expiry(self, jumped_at: datetime | None) -> datetime:
        """`expires_at`; for a key from before a jump of the clock, its whole time to live after the jump."""
        return counted_from(self.created_at, jumped_at) + (self.expires_at - self.created_at)


def counted_from(at: datetime, jumped_at: datetime | None) -> datetime:
    """The time from which an age is counted: what a jump of the clock skipped may not have passed."""
    return at if jumped_at is None else max(at, jumped_at)


def is_lost_key_alive(
    restored_at: datetime | None, key_ttl: timedelta, now: datetime, jumped_at: datetime | None
) -> bool:
    """Whether a key of the history that the last restore lost may still be repeated; false without a restore.

    The lost history may have executed its order under the same client order id.
    """
    return restored_at is not None and now < counted_from(restored_at, jumped_at) + key_ttl


class KeyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a key's order, written into the key's row in the commit that ends the order.

    It is written only while the row belongs to that order, and raises the row's version by one.
    """

    account_id: AccountId
    operation: str
    idempotency_key: str
    order_id: OrderId
    status: KeyStatus
    result_digest: str
    http_status: int | None = None
    response_payload_json: str | None = None

    def written_to(self, entry: KeyEntry | None) -> KeyEntry | None:
        """The key's row with this result; none where the row is gone or belongs to another order."""
        if entry is None or entry.order_id != self.order_id:
            return None
        return msgspec.structs.replace(
            entry,
            status=self.status,
            http_status=self.http_status,
            response_payload_json=self.response_payload_json,
            result_digest=self.result_digest,
            version=entry.version + 1,
        )


def checked_key(text: str) -> str:
    """The key; raises InvalidKey unless it has 1 to 255 visible ASCII characters."""
    if not 1 <= len(text) <= KEY_LENGTH_MAX:
        raise InvalidKey(f"must have 1 to {KEY_LENGTH_MAX} characters")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise InvalidKey("must consist of visible ASCII characters")
    return text
