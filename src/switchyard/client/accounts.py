"""The requests about what an account has open, and how to read their responses; performs no I/O."""

from collections.abc import Sequence
from urllib.parse import quote as percent_encoded

import msgspec

from switchyard.client.calls import Call, Response, new_key, order_path
from switchyard.client.wire import Acknowledgement, ExactAmount, exact_amount, read
from switchyard.domain.accounts.views import AccountView
from switchyard.domain.journal.events import encode
from switchyard.domain.orders.closing import CancelAllRequest, CancelAllResult, CloseBody
from switchyard.domain.orders.explain import Explanation
from switchyard.domain.orders.keys import checked_key
from switchyard.domain.orders.order import TimeInForce


def close_position(
    symbol: str,
    *,
    qty: ExactAmount | None = None,
    limit_price: ExactAmount | None = None,
    time_in_force: TimeInForce | None = None,
    client_order_id: str | None = None,
    strategy: str | None = None,
    tags: Sequence[str] = (),
    idempotency_key: str | None = None,
) -> Call[Acknowledgement]:
    """Close the account's position in a symbol, or `qty` of it; without a limit price at the market.

    The gateway decides the side, and without `qty` the quantity. What open orders may still close is left to them, so
    the position is never turned around. Without a position it raises ApiError `NOT_FOUND`, and where open orders leave
    less to close than `qty`, or nothing, `POSITION_CLOSING`. Keys and retries are as for `place`.
    """
    key = new_key() if idempotency_key is None else checked_key(idempotency_key)
    body = CloseBody(
        qty=None if qty is None else exact_amount(qty, "qty"),
        type="MARKET" if limit_price is None else "LIMIT",
        price=None if limit_price is None else exact_amount(limit_price, "limit_price"),
        time_in_force=time_in_force,
        client_order_id=client_order_id,
        strategy=strategy,
        tags=tuple(tags),
    )

    def acknowledgement(response: Response) -> Acknowledgement:
        accepted = read(response.body, Acknowledgement)
        return msgspec.structs.replace(accepted, idempotency_key=key, replayed=response.replayed)

    path = f"/positions/{percent_encoded(symbol, safe='')}/close"
    return Call(method="POST", path=path, read=acknowledgement, body=encode(body), idempotency_key=key)


def cancel_all(
    *,
    symbol: str | None = None,
    strategy: str | None = None,
    venue: str | None = None,
    cursor: str | None = None,
    idempotency_key: str | None = None,
) -> Call[CancelAllResult]:
    """Request the cancel of the account's open orders, of all or of one symbol, strategy or venue.

    One call cancels at most 500 orders; `next_cursor` of the result is the `cursor` of the next call. A retry of the
    call under the same key cancels the same orders and none that were placed since.
    """
    key = new_key() if idempotency_key is None else checked_key(idempotency_key)
    body = CancelAllRequest(symbol=symbol, strategy=strategy, venue=venue, cursor=cursor)
    return Call(
        method="POST",
        path="/orders/cancel-all",
        read=lambda response: read(response.body, CancelAllResult),
        body=encode(body),
        idempotency_key=key,
    )


def account() -> Call[AccountView]:
    """Return what the account has open, what that reserves, and its limits."""
    return Call(method="GET", path="/account", read=lambda response: read(response.body, AccountView))


def explain(order_id: str) -> Call[Explanation]:
    """Return the life of an order in words."""
    path = f"{order_path(order_id)}/explain"
    return Call(method="GET", path=path, read=lambda response: read(response.body, Explanation))
