"""Orders: the request, the stored order, its snapshot and its digest, and the kinds of order that a venue takes.

Pure.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Final, Literal, Protocol, get_args

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.market.instruments import Catalogue, check_multiple
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.reasons import PROVEN_UNSENT
from switchyard.domain.values import (
    EXACT,
    ONE,
    ZERO,
    average,
    canonical,
    check_label,
    check_strategy,
    plain,
    positive_amount,
    struct_digest,
)

Side = Literal["BUY", "SELL"]
OrderType = Literal["LIMIT", "MARKET", "STOP", "STOP_LIMIT"]
TimeInForce = Literal["IOC", "FOK", "GTC", "DAY", "GTD"]

ORDER_TYPES: Final[tuple[OrderType, ...]] = get_args(OrderType)
TIMES_IN_FORCE: Final[tuple[TimeInForce, ...]] = get_args(TimeInForce)
LIMITED: Final[frozenset[OrderType]] = frozenset({"LIMIT", "STOP_LIMIT"})
"""The types with a limit price."""
STOPS: Final[frozenset[OrderType]] = frozenset({"STOP", "STOP_LIMIT"})
"""The types that wait at the venue until the market reaches their stop price."""
RESTING: Final[frozenset[TimeInForce]] = frozenset({"GTC", "DAY", "GTD"})
"""The times in force of an order that may rest at the venue."""

TAGS_MAX = 16


class OrderRequest(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The body of `POST /orders`."""

    symbol: str
    side: Side
    type: OrderType
    qty: Decimal
    price: Decimal | None = None
    stop_price: Decimal | None = None
    time_in_force: TimeInForce | None = None
    client_order_id: str | None = None
    strategy: str | None = None
    tags: tuple[str, ...] = ()
    post_only: bool = False
    """The order must not trade when it arrives: the venue rejects or cancels it instead."""
    reduce_only: bool = False
    """The venue must see to it that the order only reduces the position under our credentials."""
    display_qty: Decimal | None = None
    """Of an iceberg order: the part of the quantity that the venue shows to the market."""
    expire_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Of a GTD order, which the venue ends at this time."""


class Order(msgspec.Struct, frozen=True):
    """The order's row, as its events have made it."""

    order_id: OrderId
    account_id: AccountId
    client_order_id: str | None
    """The caller's own label; no behaviour depends on it."""
    venue_client_order_id: VenueClientOrderId
    symbol: str
    side: Side
    type: OrderType
    time_in_force: TimeInForce
    qty: Decimal
    price: Decimal | None
    stop_price: Decimal | None
    status: Status
    filled_qty: Decimal
    filled_notional: Decimal
    """Sum of quantity times price over all fills, exact; the average price is derived from it."""
    venue: VenueName
    venue_order_id: str | None
    reason: str | None
    """Why the order ended: an `EndReason` where Switchyard ended it, otherwise the venue's words."""
    strategy: str | None
    tags: tuple[str, ...]
    accepted_at: datetime
    updated_at: datetime
    version: int
    """Starts at 1; a write of version n needs version n-1 in the database."""
    trace_id: str | None = None
    """The caller's id of the request, for correlation: sent to the venue and shown in events and logs."""
    requested_at: datetime | None = None
    """When the caller says that the request was made."""
    operation: str | None = None
    """With the key below: the idempotency key that the order was accepted under; none without one."""
    idempotency_key: str | None = None
    currency: str | None = None
    """The settlement currency; none for an instrument without one."""
    multiplier: Decimal = ONE
    """Of the instrument when the order was accepted: quantity times price times multiplier is money."""
    reserve_price: Decimal | None = None
    """The price at which the rest of the order is reserved while it is open; none where no market was known."""
    reducing: bool = False
    """Whether it was accepted as an order that can only make the account's position smaller."""
    expires_at: datetime | None = None
    """Of a DAY order the end of the trading day on which it was accepted, of a GTD order the `expireAt` of its request:
    it is not sent after it. None for other orders."""
    reduce_only: bool = False
    """Whether it was placed to close a position: a venue that has reduce-only orders gets it as one."""
    amend_qty: Decimal | None = None
    """With the next field: what an amend asks for that is not settled. The larger of both amounts is reserved."""
    amend_reserve_price: Decimal | None = None
    leg_client_order_id: VenueClientOrderId | None = None
    """The id under which the venue has the order since an amend replaced it there; none: `venue_client_order_id`."""
    leg_end: Status | None = None
    """The end that the venue reported while an amend was not settled that may have replaced the order there."""
    post_only: bool = False
    display_qty: Decimal | None = None
    venue_reduce_only: bool = False
    """Whether its client asked for a reduce-only order: unlike a close it goes only to a venue that has them."""

    @property
    def is_reduce_only(self) -> bool:
        """Whether a venue that has reduce-only orders gets it as one."""
        return self.reduce_only or self.venue_reduce_only


class OrderSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order as clients see it, in answers, streams and events; without a value, a field with a default is absent."""

    order_id: OrderId
    account_id: AccountId
    client_order_id: str | None
    symbol: str
    side: Side
    type: OrderType
    time_in_force: TimeInForce
    qty: Decimal
    price: Decimal | None
    stop_price: Decimal | None
    status: Status
    filled_qty: Decimal
    remaining_qty: Decimal
    avg_price: Decimal | None
    venue: VenueName
    venue_order_id: str | None
    reason: str | None
    strategy: str | None
    tags: tuple[str, ...]
    accepted_at: datetime
    updated_at: datetime
    version: int
    trace_id: str | None = None
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    reduce_only: bool = False
    pending_qty: Decimal | None = None
    """The quantity of an amend that is not settled: one is under way."""
    post_only: bool = False
    display_qty: Decimal | None = None


def snapshot(order: Order) -> OrderSnapshot:
    """The order as clients see it."""
    return OrderSnapshot(
        order_id=order.order_id,
        account_id=order.account_id,
        client_order_id=order.client_order_id,
        symbol=order.symbol,
        side=order.side,
        type=order.type,
        time_in_force=order.time_in_force,
        qty=order.qty,
        price=order.price,
        stop_price=order.stop_price,
        status=order.status,
        filled_qty=order.filled_qty,
        remaining_qty=remaining_qty(order),
        avg_price=average_price(order),
        venue=order.venue,
        venue_order_id=order.venue_order_id,
        reason=order.reason,
        strategy=order.strategy,
        tags=order.tags,
        accepted_at=order.accepted_at,
        updated_at=order.updated_at,
        version=order.version,
        trace_id=order.trace_id,
        requested_at=order.requested_at,
        expires_at=order.expires_at,
        reduce_only=order.is_reduce_only,
        pending_qty=order.amend_qty,
        post_only=order.post_only,
        display_qty=order.display_qty,
    )


def average_price(order: Order) -> Decimal | None:
    """The average fill price; none before the first fill."""
    return average(order.filled_notional, order.filled_qty) if order.filled_qty else None


def remaining_qty(order: Order) -> Decimal:
    """The leaves quantity; never below zero, also after an overfill."""
    if not order.filled_qty:
        return order.qty
    return max(canonical(EXACT.subtract(order.qty, order.filled_qty)), ZERO)


def ended_unsent(order: Order) -> bool:
    """Whether the order ended because it could not be sent; `is_proven_unsent` says whether its key may be reused."""
    return order.status in ("EXPIRED", "REJECTED") and order.reason in PROVEN_UNSENT and order.venue_order_id is None


def checked(request: OrderRequest, catalogue: Catalogue) -> OrderRequest:
    """The request with canonical amounts and defaults filled in; raises InvalidField for the first wrong field."""
    instrument = catalogue.tradable(request.symbol, "symbol")
    if request.client_order_id is not None:
        check_label("clientOrderId", request.client_order_id)
    if request.strategy is not None:
        check_strategy(request.strategy)
    if len(request.tags) > TAGS_MAX:
        raise InvalidField("tags", f"at most {TAGS_MAX} tags, got {len(request.tags)}")
    for tag in request.tags:
        check_label("tags", tag)
    _check_fields(request)
    qty = positive_amount(request.qty, "qty")
    check_multiple(qty, instrument.step, "qty", instrument)
    price, stop_price = request.price, request.stop_price
    if price is not None:
        price = positive_amount(price, "price")
        check_multiple(price, instrument.tick, "price", instrument)
    if stop_price is not None:
        stop_price = positive_amount(stop_price, "stopPrice")
        check_multiple(stop_price, instrument.tick, "stopPrice", instrument)
    display_qty = request.display_qty
    if display_qty is not None:
        display_qty = positive_amount(display_qty, "displayQty")
        check_multiple(display_qty, instrument.step, "displayQty", instrument)
        if display_qty > qty:
            raise InvalidField("displayQty", f"{plain(display_qty)} is more than qty, which is {plain(qty)}")
    return OrderRequest(
        symbol=request.symbol,
        side=request.side,
        type=request.type,
        qty=qty,
        price=price,
        stop_price=stop_price,
        time_in_force=request.time_in_force or ("IOC" if request.type == "MARKET" else "GTC"),
        client_order_id=request.client_order_id,
        strategy=request.strategy,
        tags=request.tags,
        post_only=request.post_only,
        reduce_only=request.reduce_only,
        display_qty=display_qty,
        expire_at=_in_utc(request.expire_at),
    )


def _in_utc(time: datetime | None) -> datetime | None:
    """The time in one form, so that equal times have an equal digest."""
    try:
        return None if time is None else time.astimezone(UTC)
    except OverflowError:
        raise InvalidField("expireAt", "must be a time between the years 1 and 9999, in UTC") from None


def _check_fields(request: OrderRequest) -> None:
    """Check that the fields are those of the order type."""
    kind = request.type
    if kind in LIMITED:
        if request.price is None:
            raise InvalidField("price", f"required on a {kind} order")
    elif request.price is not None:
        raise InvalidField("price", f"not allowed on a {kind} order")
    if kind in STOPS:
        if request.stop_price is None:
            raise InvalidField("stopPrice", f"required on a {kind} order")
        if request.time_in_force is not None and request.time_in_force not in RESTING:
            raise InvalidField(
                "timeInForce", f"{request.time_in_force} is not allowed on a {kind} order, which waits: GTC, DAY or GTD"
            )
    elif request.stop_price is not None:
        raise InvalidField("stopPrice", f"not allowed on a {kind} order")
    is_gtd = request.time_in_force == "GTD"
    if is_gtd and request.expire_at is None:
        raise InvalidField("expireAt", "required with timeInForce GTD")
    if request.expire_at is not None and not is_gtd:
        raise InvalidField("expireAt", "only allowed with timeInForce GTD")
    if request.post_only or request.display_qty is not None:
        _check_rests(request)


def _check_rests(request: OrderRequest) -> None:
    """Check that the order can rest at the venue under its limit price."""
    field, types = ("postOnly", ("LIMIT",)) if request.post_only else ("displayQty", ("LIMIT", "STOP_LIMIT"))
    if request.type not in types:
        raise InvalidField(field, f"not allowed on a {request.type} order, only on {' and '.join(types)}")
    if request.time_in_force is not None and request.time_in_force not in RESTING:
        raise InvalidField(
            field, f"not allowed with timeInForce {request.time_in_force}: the order must be able to rest"
        )


def order_digest(request: OrderRequest) -> str:
    """The digest of a checked request: equal meaning, equal digest.

    It covers the request after its defaults. A field without a value has no part in it, so `null`, an empty list and
    an absent field are the same.
    """
    return struct_digest(request)


class OrderKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The order types and times in force that a venue has itself."""

    types: frozenset[OrderType] = frozenset({"LIMIT", "MARKET"})
    times_in_force: frozenset[TimeInForce] = frozenset({"IOC", "FOK", "GTC"})


ALL_KINDS: Final = OrderKinds(types=frozenset(ORDER_TYPES), times_in_force=frozenset(TIMES_IN_FORCE))


class TakenOrders(Protocol):
    """The orders that a venue takes; `ports.venue.Capabilities` has these members, too."""

    @property
    def kinds(self) -> OrderKinds:
        """The order types and times in force that it has."""
        ...

    @property
    def post_only(self) -> bool:
        """Whether it has post-only orders."""
        ...

    @property
    def reduce_only(self) -> bool:
        """Whether it has reduce-only orders."""
        ...

    @property
    def display_qty(self) -> bool:
        """Whether it has iceberg orders."""
        ...


class Lacking(msgspec.Struct, frozen=True):
    """What an order needs and its venue does not have."""

    value: str
    setting: str
    """The beginning of the setting that declares it."""
    taken: tuple[str, ...] = ()
    """The values that the venue takes; empty for a field that it does not have at all."""


def takes_every_order(venue: TakenOrders) -> bool:
    """Whether the venue takes orders of every kind."""
    return venue.kinds == ALL_KINDS and venue.post_only and venue.reduce_only and venue.display_qty


def lacking(venue: TakenOrders, order: Order | OrderRequest) -> Lacking | None:
    """What the venue lacks for the order; none where it takes the order."""
    kinds = venue.kinds
    if order.type not in kinds.types:
        taken = tuple(name for name in ORDER_TYPES if name in kinds.types)
        return Lacking(f"type {order.type}", "VENUE_ORDER_TYPES_", taken)
    if order.time_in_force is not None and order.time_in_force not in kinds.times_in_force:
        allowed = tuple(name for name in TIMES_IN_FORCE if name in kinds.times_in_force)
        return Lacking(f"timeInForce {order.time_in_force}", "VENUE_TIMES_IN_FORCE_", allowed)
    if order.post_only and not venue.post_only:
        return Lacking("postOnly", "VENUE_POST_ONLY_")
    if order.display_qty is not None and not venue.display_qty:
        return Lacking("displayQty", "VENUE_DISPLAY_QTY_")
    # A close goes to every venue: our own check at its acceptance is enough for it.
    is_asked = order.reduce_only if isinstance(order, OrderRequest) else order.venue_reduce_only
    if is_asked and not venue.reduce_only:
        return Lacking("reduceOnly", "VENUE_REDUCE_ONLY_")
    return None
