"""One key, one order: what the key store remembers of a request, and keys made from the order itself."""

from datetime import datetime
from typing import Literal

import msgspec

from switchyard.domain.derived_keys import generate_idempotency_key, validate_idempotency_key
from switchyard.domain.errors import InvalidKey
from switchyard.domain.ids import AccountId, OrderId

__all__ = [
    "KEY_LENGTH_MAX",
    "PLACE_ORDER",
    "KeyEntry",
    "checked_key",
    "generate_idempotency_key",
    "validate_idempotency_key",
]

KEY_LENGTH_MAX = 255
PLACE_ORDER = "orders"
KeyStatus = Literal["accepted", "succeeded", "failed"]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The first request with a key; its primary key is (account, operation, key)."""

    account_id: AccountId
    operation: str
    idempotency_key: str
    generation: int
    """How often the key began anew, after expiry or after a failure that left nothing at the venue."""
    order_id: OrderId
    request_digest: str
    created_at: datetime
    expires_at: datetime
    status: KeyStatus = "accepted"
    http_status: int | None = None
    """With the body below: the final answer, where the operation has one that a repeat must get again."""
    response_payload_json: str | None = None
    result_digest: str | None = None
    version: int = 1
    """A write of version n needs n-1 in the database, or nothing for the first."""


def checked_key(text: str) -> str:
    """The key, or an error that names the header: 1 to 255 visible ASCII characters."""
    if not 1 <= len(text) <= KEY_LENGTH_MAX:
        raise InvalidKey(f"must have 1 to {KEY_LENGTH_MAX} characters")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise InvalidKey("must consist of visible ASCII characters")
    return text
