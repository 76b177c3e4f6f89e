"""`place_order_with_idempotency`: places an order without a caller-supplied key; the gateway derives one."""

import base64
import binascii

import msgspec

from switchyard.client.address import default_token, default_url
from switchyard.client.async_client import AsyncClient
from switchyard.client.calls import WINDOW_SECONDS
from switchyard.client.errors import ClientError
from switchyard.client.wire import OrderPlacementResult, Retry
from switchyard.domain.errors import InvalidField
from switchyard.domain.orders.keys import Amount


async def place_order_with_idempotency(
    account_id: str,
    symbol: str,
    side: str,
    quantity: Amount,
    order_type: str = "MARKET",
    limit_price: Amount | None = None,
    stop_price: Amount | None = None,
    *,
    base_url: str | None = None,
    token: str | None = None,
    retry: Retry | None = None,
    timeout_seconds: float = 10.0,
    window_seconds: float = WINDOW_SECONDS,
) -> OrderPlacementResult:
    """Place an order once, even if several processes make the same call within a minute.

    The gateway detects duplicates by the content of the order and the clock of the database. The URL and the token
    default to `SWITCHYARD_HOST`, `SWITCHYARD_PORT` and `SWITCHYARD_TOKEN`. A rejection or an unreachable gateway is
    returned with status `failed`; an invalid argument raises InvalidField.

    `window_seconds` must equal the gateway's `timestampResolution`. A request whose response was lost is retried only
    within that time, since a later retry would be a new order.
    """
    token = default_token() if token is None else token
    owner = _account_of(token)
    if owner is not None and owner != account_id:
        raise InvalidField("account_id", f"{account_id!r} does not match the account of the token, {owner!r}")
    url = default_url() if base_url is None else base_url
    async with AsyncClient(url, token, retry=retry, timeout_seconds=timeout_seconds) as client:
        try:
            return await client.place_by_content(
                symbol,
                side,
                quantity,
                order_type=order_type,
                limit_price=limit_price,
                stop_price=stop_price,
                window_seconds=window_seconds,
            )
        except ClientError as error:
            return OrderPlacementResult(success=False, status="failed", message=_failure(error, window_seconds))


def _failure(error: ClientError, window_seconds: float) -> str:
    if not error.in_doubt:
        return f"Order placement failed: {error}"
    return (
        f"Order placement is in doubt, the order may exist: {error}. Within {window_seconds:g} seconds of the first "
        "attempt, repeat the same call to find it; later, check the account's orders first"
    )


class _Claims(msgspec.Struct, rename="camel"):
    """The token claims from which the gateway reads the account."""

    account_id: str | None = None
    sub: str | None = None


def _account_of(token: str) -> str | None:
    """Return the account of the token, or None if it cannot be decoded; the gateway then rejects the token."""
    try:
        body = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)
    except (IndexError, binascii.Error, ValueError, msgspec.DecodeError):
        return None
    return claims.account_id or claims.sub
