"""Orders without a key of their own: one call that can be repeated, from anywhere, and makes one order a minute."""

import base64
import binascii

import msgspec

from switchyard.client.address import default_token, default_url
from switchyard.client.api import WINDOW_SECONDS, Client
from switchyard.client.errors import ClientError
from switchyard.client.retry import Retry
from switchyard.client.wire import OrderPlacementResult
from switchyard.domain.derived_keys import Amount
from switchyard.domain.errors import InvalidField


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
    """Place an order once, however often and from wherever the same call is made within a minute.

    The gateway finds duplicates by the order's content and the database's clock. Address and token come from
    `SWITCHYARD_HOST`, `SWITCHYARD_PORT` and `SWITCHYARD_TOKEN` unless they are given. A rejection and an unreachable
    gateway are results (`failed`); arguments that cannot be meant raise InvalidField. `window_seconds` is the gateway's
    `timestampResolution`: a lost answer is never asked for again after that time, when it would be a new order.
    """
    token = default_token() if token is None else token
    owner = _account_of(token)
    if owner is not None and owner != account_id:
        raise InvalidField("account_id", f"{account_id!r} is not the token's account, which is {owner!r}")
    url = default_url() if base_url is None else base_url
    async with Client(url, token, retry=retry, timeout_seconds=timeout_seconds) as client:
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
        "try the same call finds it; later, look at the account's orders first"
    )


class _Claims(msgspec.Struct, rename="camel"):
    """Whom a token speaks for, as the gateway reads it."""

    account_id: str | None = None
    sub: str | None = None


def _account_of(token: str) -> str | None:
    """The account that the token names; none where it cannot be read, which is for the gateway to reject."""
    try:
        body = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)
    except (IndexError, binascii.Error, ValueError, msgspec.DecodeError):
        return None
    return claims.account_id or claims.sub
