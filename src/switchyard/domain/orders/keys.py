"""Idempotency keys: the stored entry of a key, and keys that are derived from the content of a request. Pure."""

import hashlib
import hmac
import re
from collections.abc import Collection
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal, get_args

import msgspec

from switchyard.domain.errors import InvalidField, InvalidKey
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.order import OrderType, Side
from switchyard.domain.values import AMOUNT_LIMIT, DECIMALS_MAX, fixed

Amount = Decimal | int | str | float
"""A float means its shortest decimal text: `0.1` is one tenth."""

TIMESTAMP_RESOLUTION_MS = 60_000
# The year 10000; a larger number is in microseconds or nanoseconds.
TIMESTAMP_LIMIT_MS = 253_402_300_800_000
# Longer than any identifier or amount in the contracts.
TEXT_LENGTH_MAX = 255

_SIDES = frozenset(get_args(Side))
_PRICES_BY_TYPE = {
    "MARKET": frozenset[str](),
    "LIMIT": frozenset({"limit_price"}),
    "STOP": frozenset({"stop_price"}),
    "STOP_LIMIT": frozenset({"limit_price", "stop_price"}),
}
assert set(_PRICES_BY_TYPE) == set(get_args(OrderType))
# Decimal() also accepts underscores, blanks and non-ASCII digits, which other languages reject.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_KEY = re.compile(r"[0-9a-f]{64}")


class KeyParts(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of an order enter its key; the time window always does.

    Orders that differ only in a part that is left out have the same key. Without the type, a limit price and a stop
    price of the same amount are the same as well.
    """

    account: bool = True
    symbol: bool = True
    side: bool = True
    quantity: bool = True
    order_type: bool = True
    prices: bool = True


ALL_PARTS = KeyParts()


def generate_idempotency_key(
    account_id: str,
    symbol: str,
    side: str,
    quantity: Amount,
    timestamp_ms: int,
    order_type: str = "MARKET",
    limit_price: Amount | None = None,
    stop_price: Amount | None = None,
    timestamp_resolution_ms: int = TIMESTAMP_RESOLUTION_MS,
    *,
    secret: str | bytes | None = None,
    parts: KeyParts = ALL_PARTS,
) -> str:
    """The order's key: 64 lowercase hexadecimal characters; raises InvalidField that names the wrong argument."""
    window = _whole(timestamp_ms, "timestamp_ms", 0) // _whole(timestamp_resolution_ms, "timestamp_resolution_ms", 1)
    order_type = _word(order_type, "order_type", _PRICES_BY_TYPE)
    components = [
        (parts.account, _text(account_id, "account_id")),
        (parts.symbol, _text(symbol, "symbol", upper=True)),
        (parts.side, _word(side, "side", _SIDES)),
        (parts.quantity, _amount(quantity, "quantity")),
        (True, str(window)),
        (parts.order_type, order_type),
        *[(parts.prices, price) for price in _prices(order_type, limit_price, stop_price)],
    ]
    return keyed_digest("|".join([text for included, text in components if included]).encode(), secret)


def validate_idempotency_key(key: str) -> bool:
    """Whether the key has the form of `generate_idempotency_key`: exactly 64 lowercase hexadecimal characters."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def keyed_digest(text: bytes, secret: str | bytes | None) -> str:
    """SHA-256 of the text, or HMAC-SHA256 with the secret: 64 hexadecimal characters."""
    if secret is None:
        return hashlib.sha256(text).hexdigest()
    if not secret:
        raise InvalidField("secret", "must not be empty; pass none for a key without a secret")
    return hmac.digest(secret.encode() if isinstance(secret, str) else secret, text, "sha256").hex()


def _prices(order_type: str, limit_price: Amount | None, stop_price: Amount | None) -> list[str]:
    texts = []
    for name, price in (("limit_price", limit_price), ("stop_price", stop_price)):
        if price is None:
            continue
        if name not in _PRICES_BY_TYPE[order_type]:
            raise InvalidField(name, f"not allowed on a {order_type} order")
        texts.append(_amount(price, name))
    if order_type == "STOP_LIMIT" and len(texts) == 1:
        missing = "limit_price" if limit_price is None else "stop_price"
        raise InvalidField(missing, "a STOP_LIMIT order has both prices")
    return texts


def _text(value: str, name: str, *, upper: bool = False) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= TEXT_LENGTH_MAX:
        raise InvalidField(name, f"must be a text of 1 to {TEXT_LENGTH_MAX} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidField(name, "must not contain an unpaired surrogate") from None
    text = value.upper() if upper else value
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _word(value: str, name: str, known: Collection[str]) -> str:
    # Some non-ASCII letters have an ASCII capital (`ſ` becomes `S`), so only ASCII is compared.
    word = value.upper() if isinstance(value, str) and value.isascii() else None
    if word is None or word not in known:
        raise InvalidField(name, f"must be one of {', '.join(sorted(known))}")
    return word


def _whole(value: int, name: str, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidField(name, "must be a whole number of milliseconds")
    if not low <= value < TIMESTAMP_LIMIT_MS:
        raise InvalidField(name, f"must be at least {low} and less than {TIMESTAMP_LIMIT_MS} milliseconds")
    return value


def _amount(value: Amount, name: str) -> str:
    number = decimal_of(value)
    if number is None or not number.is_finite():
        raise InvalidField(name, "must be a finite number")
    if number >= AMOUNT_LIMIT:
        raise InvalidField(name, f"must be less than {AMOUNT_LIMIT:f}")
    text = fixed(number) if number > 0 else ""
    if not text.strip("0."):
        raise InvalidField(name, f"must be greater than 0 with {DECIMALS_MAX} decimals")
    return text


def decimal_of(value: Amount) -> Decimal | None:
    """The amount as a decimal, or none where it is not a number."""
    match value:
        case Decimal():
            return value
        case bool():
            return None
        case int():
            return Decimal(value)
        case float():
            # Not repr(): a subclass, such as numpy's, may have another one.
            return Decimal(float.__repr__(value))
        case str() if len(value) <= TEXT_LENGTH_MAX and _NUMBER.fullmatch(value):
            return Decimal(value)
        case _:
            return None


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
