"""The requests of the API and how to read their responses; performs no I/O.

`Client` and `AsyncClient` take their methods from here; they differ only in how they send a call.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote as percent_encoded

import msgspec

from switchyard.client.wire import (
    DO_ORDER_RETRY,
    Acknowledgement,
    AmendResult,
    ExactAmount,
    OrderPlacementResult,
    PlacementResponse,
    Retry,
    VenueStates,
    api_error,
    exact_amount,
    order_by_content,
    read,
)
from switchyard.domain.accounts.views import AccountView, ExposureView
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.market.health import VenueState
from switchyard.domain.market.quotes import MarketQuote
from switchyard.domain.orders.amends import AmendRequest
from switchyard.domain.orders.closing import CancelAllRequest, CancelAllResult, CloseBody
from switchyard.domain.orders.do_order import DoOrderRequest, ExecResult, RiskConstraints
from switchyard.domain.orders.explain import Explanation
from switchyard.domain.orders.keys import Amount, checked_key
from switchyard.domain.orders.order import OrderRequest, OrderSnapshot, OrderType, Side, TimeInForce
from switchyard.domain.risk.checks import DryRun
from switchyard.domain.risk.kills import ClearRequest, KillMode, KillState, KillView, ScopeRequest

T = TypeVar("T")
Keyed = TypeVar("Keyed", Acknowledgement, AmendResult)

# The default of the gateway's `timestampResolution`: within it an equal order is a duplicate.
WINDOW_SECONDS = 60.0
# The gateway waits up to 5.5 s for the broker; a shorter limit would give up on results that are about to arrive.
DO_ORDER_TIMEOUT_SECONDS = 10.0


class Headers(Protocol):
    """Headers of a response; names are compared without case."""

    def get(self, name: str, default: str, /) -> str:
        """The header's value."""


class Response(NamedTuple):
    """A response with a status below 300."""

    body: bytes
    replayed: bool


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request that may be sent several times, and how to read its response."""

    method: str
    path: str
    """With the query; segments are percent-encoded, so that an id with a slash cannot address another path."""
    read: Callable[[Response], T]
    body: bytes | None = None
    idempotency_key: str | None = None
    derive_key: bool = False
    version: int | None = None
    """The version that the order must have."""
    retry: Retry | None = None
    """Instead of the client's."""
    timeout_seconds_min: float = 0.0
    window_seconds: float = math.inf
    """How long after the first attempt the gateway recognises a repeat."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of this request; the token is not among them."""
        headers = {} if self.body is None else {"Content-Type": "application/json"}
        if self.idempotency_key is not None:
            headers["Idempotency-Key"] = self.idempotency_key
        if self.derive_key:
            headers["Idempotency-Derive"] = "true"
        if self.version is not None:
            headers["If-Match"] = f'"{self.version}"'
        return headers


def response_of(status: int, headers: Headers, body: bytes) -> Response:
    """The response; raises ApiError for an error status."""
    if status >= 300:
        raise api_error(status, body, headers.get("Retry-After", ""))
    return Response(body, headers.get("Idempotent-Replayed", "") == "true")


def place(
    symbol: str,
    side: Side,
    qty: ExactAmount,
    *,
    limit_price: ExactAmount | None = None,
    stop_price: ExactAmount | None = None,
    time_in_force: TimeInForce | None = None,
    client_order_id: str | None = None,
    strategy: str | None = None,
    tags: Sequence[str] = (),
    post_only: bool = False,
    reduce_only: bool = False,
    display_qty: ExactAmount | None = None,
    expire_at: datetime | None = None,
    idempotency_key: str | None = None,
) -> Call[Acknowledgement]:
    """Place an order; without a limit price it is a market order. With a stop price it waits for that price first.

    Every order has an idempotency key: `idempotency_key`, or a new random one. If the connection fails or the gateway
    responds 503, the order may or may not have been accepted. The client then sends it again under the *same* key, up
    to `Retry.attempts_max` times, and the gateway returns the order that the key already has. So a retry never places
    a second order.

    If the outcome is still unknown, the error carries the key in `idempotency_key`: call `place` again with that key.
    To be safe against a crash of the calling process, generate and store the key before the call.

    Amounts are exact: pass `int`, `str` or `Decimal`. A float raises InvalidField. `expire_at` belongs to the time in
    force GTD and needs an offset. What the venue lacks of the last four members is rejected, never imitated.
    """
    request = _order_request(
        symbol,
        side,
        qty,
        limit_price,
        stop_price,
        time_in_force,
        client_order_id,
        strategy,
        tags,
        post_only,
        reduce_only,
        display_qty,
        expire_at,
    )
    key = new_key() if idempotency_key is None else checked_key(idempotency_key)

    return Call(
        method="POST",
        path="/orders",
        read=_read_with_key(key, Acknowledgement),
        body=encode(request),
        idempotency_key=key,
    )


def dry_run(
    symbol: str,
    side: Side,
    qty: ExactAmount,
    *,
    limit_price: ExactAmount | None = None,
    stop_price: ExactAmount | None = None,
    time_in_force: TimeInForce | None = None,
    client_order_id: str | None = None,
    strategy: str | None = None,
    tags: Sequence[str] = (),
    post_only: bool = False,
    reduce_only: bool = False,
    display_qty: ExactAmount | None = None,
    expire_at: datetime | None = None,
) -> Call[DryRun]:
    """Return what every pre-trade check says about an order, without placing it; the arguments are those of `place`."""
    request = _order_request(
        symbol,
        side,
        qty,
        limit_price,
        stop_price,
        time_in_force,
        client_order_id,
        strategy,
        tags,
        post_only,
        reduce_only,
        display_qty,
        expire_at,
    )
    return Call(
        method="POST",
        path="/orders?dryRun=true",
        read=_as(DryRun),
        body=encode(request),
    )


def place_by_content(
    symbol: str,
    side: str,
    qty: Amount,
    *,
    order_type: str = "MARKET",
    limit_price: Amount | None = None,
    stop_price: Amount | None = None,
    window_seconds: float = WINDOW_SECONDS,
) -> Call[OrderPlacementResult]:
    """Place an order under a key that the gateway derives from its content.

    An equal order of the same account within the window is a duplicate, even from another process. Use this if the
    caller cannot keep a key between two attempts; use `place` to place two equal orders on purpose.
    """
    return Call(
        method="POST",
        path="/orders",
        read=lambda response: read(response.body, PlacementResponse).result(),
        body=encode(order_by_content(symbol, side, qty, order_type, limit_price, stop_price)),
        derive_key=True,
        window_seconds=window_seconds,
    )


def do_order(
    instrument: str,
    side: Side,
    qty: ExactAmount,
    *,
    price: ExactAmount | None = None,
    time_in_force: Literal["IOC", "FOK", "GTC"] = "IOC",
    order_id: str | None = None,
    tags: Sequence[str] = (),
    risk_constraints: RiskConstraints | None = None,
    requested_at: datetime | None = None,
    trace_id: str | None = None,
    idempotency_key: str | None = None,
) -> Call[ExecResult]:
    """Place an order with `POST /do/order` and return the broker's result; `qty` is in lots.

    If the connection fails or the broker is down or too slow, the request is repeated under the same key after 1, 2 and
    4 seconds, as the specification recommends. A repeat never executes the order twice. If the last attempt fails too,
    the error carries the key; call `do_order` again with that key and the same arguments to get the result.

    The result is what is known now: with the status `unknown`, or `accepted` without a `broker_order_id`, call again
    with the same key later. A rejection raises ApiError `BROKER_REJECTED`.
    """
    key = new_key() if idempotency_key is None else checked_key(idempotency_key)
    request = DoOrderRequest(
        order_id=order_id or key,
        instrument=instrument,
        side=side,
        qty=exact_amount(qty, "qty"),
        price=_exact(price, "price"),
        time_in_force=time_in_force,
        tags=tuple(tags),
        risk_constraints=risk_constraints or RiskConstraints(),
        requested_at=requested_at,
        trace_id=trace_id,
        idempotency_key=key,
    )
    return Call(
        method="POST",
        path="/do/order",
        read=_as(ExecResult),
        body=encode(request),
        idempotency_key=key,
        retry=DO_ORDER_RETRY,
        timeout_seconds_min=DO_ORDER_TIMEOUT_SECONDS,
    )


def order(order_id: str) -> Call[OrderSnapshot]:
    """Return the current state of an order."""
    return Call(method="GET", path=order_path(order_id), read=_as(OrderSnapshot))


def quote(symbol: str, *, venue: str | None = None) -> Call[MarketQuote]:
    """Return the symbol's market at the venue, by default the one that its orders go to.

    Without a fresh quote it raises ApiError `NO_QUOTE`, after the retries.
    """
    query = "" if venue is None else f"?venue={percent_encoded(venue, safe='')}"
    return Call(
        method="GET",
        path=f"/quotes/{percent_encoded(symbol, safe='')}{query}",
        read=_as(MarketQuote),
    )


def venues() -> Call[list[VenueState]]:
    """Return every venue: whether orders are sent to it, why not, and how it answers."""
    return Call(method="GET", path="/venues", read=lambda response: read(response.body, VenueStates).venues)


def cancel(order_id: str) -> Call[Acknowledgement]:
    """Request a cancel. A repeat has no effect; an order that has ended raises ApiError `ORDER_FINAL`."""
    path = f"{order_path(order_id)}/cancel"
    return Call(method="POST", path=path, read=_as(Acknowledgement))


def amend(
    order_id: str,
    *,
    qty: ExactAmount | None = None,
    limit_price: ExactAmount | None = None,
    stop_price: ExactAmount | None = None,
    version: int | None = None,
    idempotency_key: str | None = None,
) -> Call[AmendResult]:
    """Amend an open order: its total quantity, including what is filled, or its prices.

    The result tells that the amend is stored; `PENDING` becomes `AMENDED` or `REFUSED`, which a call with the same
    `idempotency_key` tells, and the order's stream. With `version`, the order is amended only if it still has that
    version. As for `place`, every amend has a key, and a retry never amends twice.
    """
    request = AmendRequest(
        qty=_exact(qty, "qty"),
        price=_exact(limit_price, "limit_price"),
        stop_price=_exact(stop_price, "stop_price"),
    )
    key = new_key() if idempotency_key is None else checked_key(idempotency_key)

    return Call(
        method="PATCH",
        path=order_path(order_id),
        read=_read_with_key(key, AmendResult),
        body=encode(request),
        idempotency_key=key,
        version=version,
    )


def exposure(symbol: str | None = None) -> Call[ExposureView]:
    """Return what the account's open orders reserve, its positions and its limits, in all symbols or in one."""
    path = "/risk/exposure" if symbol is None else f"/risk/exposure?symbol={percent_encoded(symbol, safe='')}"
    return Call(method="GET", path=path, read=_as(ExposureView))


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
        qty=_exact(qty, "qty"),
        type="MARKET" if limit_price is None else "LIMIT",
        price=_exact(limit_price, "limit_price"),
        time_in_force=time_in_force,
        client_order_id=client_order_id,
        strategy=strategy,
        tags=tuple(tags),
    )

    path = f"/positions/{percent_encoded(symbol, safe='')}/close"
    return Call(
        method="POST", path=path, read=_read_with_key(key, Acknowledgement), body=encode(body), idempotency_key=key
    )


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
        read=_as(CancelAllResult),
        body=encode(body),
        idempotency_key=key,
    )


def account() -> Call[AccountView]:
    """Return what the account has open, what that reserves, and its limits."""
    return Call(method="GET", path="/account", read=_as(AccountView))


def explain(order_id: str) -> Call[Explanation]:
    """Return the life of an order in words."""
    path = f"{order_path(order_id)}/explain"
    return Call(method="GET", path=path, read=_as(Explanation))


class _KillPage(msgspec.Struct, frozen=True, rename="camel"):
    kills: list[KillView]


def kill(
    *,
    reason: str,
    everything: bool = False,
    account: str | None = None,
    strategy: str | None = None,
    venue: str | None = None,
    symbol: str | None = None,
    mode: KillMode = "block",
    wait_seconds: int = 2,
) -> Call[KillState]:
    """Stop new orders and cancel open ones: everything, or what agrees with all of the named values.

    `position` of the result is the journal number after which no covered attempt begins. The gateway answers when no
    order is pending any more, or after `wait_seconds`; read `kill_state` until it is `drained`. A repeat of the same
    request while the kill is active returns the same kill.
    """
    request = ScopeRequest(
        reason=reason,
        everything=everything,
        account=None if account is None else AccountId(account),
        strategy=strategy,
        venue=None if venue is None else VenueName(venue),
        symbol=symbol,
        mode=mode,
    )
    return Call(
        method="POST",
        path=f"/admin/kill?wait={wait_seconds}",
        read=_as(KillState),
        body=encode(request),
        timeout_seconds_min=wait_seconds + 5.0,  # the gateway itself waits
    )


def kill_state(kill_id: str) -> Call[KillState]:
    """Return a kill and what became of the orders that were open when it was set."""
    return Call(method="GET", path=_kill_path(kill_id), read=_as(KillState))


def kills(limit: int = 100) -> Call[list[KillView]]:
    """Return the newest kills, active and cleared."""
    return Call(
        method="GET",
        path=f"/admin/kills?limit={limit}",
        read=lambda response: read(response.body, _KillPage).kills,
    )


def clear_kill(kill_id: str, *, reason: str) -> Call[KillState]:
    """Clear a kill; one that was cleared before raises ApiError `KILL_CLEARED`."""
    return Call(
        method="POST",
        path=f"{_kill_path(kill_id)}/clear",
        read=_as(KillState),
        body=encode(ClearRequest(reason=reason)),
    )


def _kill_path(kill_id: str) -> str:
    return f"/admin/kill/{percent_encoded(kill_id, safe='')}"


def _as(kind: type[T]) -> Callable[[Response], T]:
    return lambda response: read(response.body, kind)


def _read_with_key(key: str, kind: type[Keyed]) -> Callable[[Response], Keyed]:
    def acknowledged(response: Response) -> Keyed:
        accepted = read(response.body, kind)
        return msgspec.structs.replace(accepted, idempotency_key=key, replayed=response.replayed)

    return acknowledged


def stream_path(order_id: str | None) -> str:
    """The path of an order's stream, or of the account's."""
    return "/stream" if order_id is None else f"{order_path(order_id)}/stream"


def stream_headers(last_event_id: str | None) -> dict[str, str]:
    """The headers that open a stream after the given message."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
    return headers if last_event_id is None else {**headers, "Last-Event-ID": last_event_id}


def order_path(order_id: str) -> str:
    """The path of an order."""
    return f"/orders/{percent_encoded(order_id, safe='')}"


def _order_request(
    symbol: str,
    side: Side,
    qty: ExactAmount,
    limit_price: ExactAmount | None,
    stop_price: ExactAmount | None,
    time_in_force: TimeInForce | None,
    client_order_id: str | None,
    strategy: str | None,
    tags: Sequence[str],
    post_only: bool,
    reduce_only: bool,
    display_qty: ExactAmount | None,
    expire_at: datetime | None,
) -> OrderRequest:
    if expire_at is not None and expire_at.utcoffset() is None:
        raise InvalidField("expire_at", f"needs an offset, such as that of UTC: {expire_at.isoformat()} has none")
    return OrderRequest(
        symbol=symbol,
        side=side,
        type=_order_type(limit_price is not None, stop_price is not None),
        qty=exact_amount(qty, "qty"),
        price=_exact(limit_price, "limit_price"),
        stop_price=_exact(stop_price, "stop_price"),
        time_in_force=time_in_force,
        client_order_id=client_order_id,
        strategy=strategy,
        tags=tuple(tags),
        post_only=post_only,
        reduce_only=reduce_only,
        display_qty=_exact(display_qty, "display_qty"),
        expire_at=expire_at,
    )


def _order_type(has_limit: bool, has_stop: bool) -> OrderType:
    if has_stop:
        return "STOP_LIMIT" if has_limit else "STOP"
    return "LIMIT" if has_limit else "MARKET"


def _exact(amount: ExactAmount | None, name: str) -> Decimal | None:
    return None if amount is None else exact_amount(amount, name)


def new_key() -> str:
    """A random idempotency key."""
    return secrets.token_hex(16)
