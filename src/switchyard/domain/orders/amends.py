"""Amends: the body of a request, the message to the venue, and the result for its idempotency key. Pure."""

from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from switchyard.domain.errors import InvalidField, NotAmendable
from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.market.instruments import Catalogue, check_multiple
from switchyard.domain.orders.keys import KeyResult
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import SETTLED, OrderState, OutboxRow
from switchyard.domain.values import digest, plain, positive_amount

# Every row of an order is loaded with it: more would slow down each of its reports.
AMENDS_MAX: Final = 100

AmendStatus = Literal[
    "PENDING",  # queued, being sent, or in doubt
    "AMENDED",
    "REFUSED",  # the order has its earlier quantity and prices
]


class AmendRequest(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The body of `PATCH /orders/{orderId}`; an absent field is unchanged."""

    qty: Decimal | None = None
    """The total quantity, including what is filled."""
    price: Decimal | None = None
    stop_price: Decimal | None = None


class Amend(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One amend: the order's amounts after it, changed or not; the payload of its outbox row."""

    client_order_id: VenueClientOrderId
    """The amend's own id; a venue that replaces the order knows it by this id from then on."""
    orig_client_order_id: VenueClientOrderId
    """The id of the last amend that was carried out, or the order's own: the venue rejects an amend of an older one."""
    qty: Decimal
    price: Decimal | None = None
    stop_price: Decimal | None = None
    reserve_price: Decimal | None = None
    """As `Order.reserve_price`, after the amend."""
    replaces: bool = False
    """Whether the venue ends the order and puts a new one, with an id of its own, in its place."""
    is_provable: bool = False
    """Whether a lookup at the venue settles a doubt about the amend, also after the order has ended."""
    operation: str = ""
    key: str = ""
    """With the operation: the idempotency key of the request; empty where a restore has lost it."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts of an order as its venue shows them; None where it does not show one."""

    qty: Decimal | None = None
    price: Decimal | None = None
    stop_price: Decimal | None = None

    def differ(self, qty: Decimal, price: Decimal | None, stop_price: Decimal | None) -> bool:
        """Whether an amount is shown and is another one; a price that the order does not have is not compared."""
        pairs = (self.qty, qty), (self.price, price), (self.stop_price, stop_price)
        return any(theirs is not None and ours is not None and theirs != ours for theirs, ours in pairs)


class AmendDigest(msgspec.Struct, frozen=True, rename="camel"):
    """What a repeated request must have in common with the first one."""

    order_id: OrderId
    amend: AmendRequest


_payload = msgspec.json.Decoder(Amend)


def payload_of(amend: Amend) -> str:
    """The amend as the text that its outbox row keeps."""
    return msgspec.json.encode(amend).decode()


def amend_of(row: OutboxRow) -> Amend:
    """The amend of an outbox row."""
    assert row.kind == "amend" and row.payload is not None, "not the row of an amend"
    return _payload.decode(row.payload)


def as_shown(amend: Amend, shown: Amounts) -> Amend:
    """The amend with the amounts that the venue shows after it; those that it does not show stay."""
    price = amend.price if amend.price is None else shown.price or amend.price
    # Only the price of a limit order is known to be what is reserved: other orders keep what they reserve.
    is_repriced = price != amend.price and amend.stop_price is None
    return replace(
        amend,
        qty=shown.qty or amend.qty,
        price=price,
        stop_price=amend.stop_price if amend.stop_price is None else shown.stop_price or amend.stop_price,
        reserve_price=price if is_repriced else amend.reserve_price,
    )


def amend_rows(state: OrderState) -> list[OutboxRow]:
    """The amends of the order, in the order of their requests."""
    return [row for row in state.outbox if row.kind == "amend"]


def by_amend_id(
    states: Iterable[OrderState], ids: Collection[VenueClientOrderId]
) -> dict[VenueClientOrderId, OrderState]:
    """The orders by those of the ids that their amends have."""
    return {
        row.venue_client_order_id: state
        for state in states
        for row in amend_rows(state)
        if row.venue_client_order_id in ids
    }


def open_amend(state: OrderState) -> OutboxRow | None:
    """The amend that is not settled; an order has one at most."""
    for row in state.outbox:
        if row.kind == "amend" and row.status not in SETTLED:
            return row
    return None


def last_id(state: OrderState) -> VenueClientOrderId:
    """The id that the next amend refers to: that of the last amend at the venue, or the order's own."""
    sent = [row for row in state.outbox if row.kind == "amend" and row.status == "sent"]
    if not sent:
        return state.order.venue_client_order_id
    return current_id(state.order) if amend_of(sent[-1]).replaces else sent[-1].venue_client_order_id


def is_stale(state: OrderState, row: OutboxRow) -> bool:
    """Whether the amend of this row names an id that is not the order's last one: it must have no effect any more.

    Another amend was recorded since it was requested: one of a lost history, or one that was taken for refused.
    """
    return amend_of(row).orig_client_order_id != last_id(state)


def current_id(order: Order) -> VenueClientOrderId:
    """The id under which the venue has the order now."""
    return order.leg_client_order_id or order.venue_client_order_id


def amend_status(row: OutboxRow) -> AmendStatus:
    """What became of an amend."""
    if row.status not in SETTLED:
        return "PENDING"
    return "AMENDED" if row.status == "sent" or row.last_error == "AMENDED_BEFORE_SENDING" else "REFUSED"


def amend_result(order: Order, row: OutboxRow) -> KeyResult | None:
    """The result of a settled amend for its key; none while it is not settled."""
    status, amend = amend_status(row), amend_of(row)
    if status == "PENDING" or not amend.key:
        return None
    return KeyResult(
        account_id=order.account_id,
        operation=amend.operation,
        idempotency_key=amend.key,
        order_id=order.order_id,
        status="succeeded" if status == "AMENDED" else "failed",
        result_digest=digest(
            {
                "order_id": order.order_id,
                "amend_id": row.venue_client_order_id,
                "status": status,
                "reason": None if status == "AMENDED" else row.last_error,
            }
        ),
    )


def checked_amend(request: AmendRequest, order: Order, catalogue: Catalogue) -> AmendRequest:
    """The request with canonical amounts; raises InvalidField for the first wrong field, NotAmendable for the order."""
    if request.qty is None and request.price is None and request.stop_price is None:
        raise InvalidField("qty", "one of qty, price and stopPrice is required")
    if order.time_in_force in ("IOC", "FOK"):
        raise NotAmendable(f"{order.time_in_force} orders cannot be amended: they are executed at once or end")
    if request.price is not None and order.price is None:
        raise InvalidField("price", f"not allowed on a {order.type} order")
    if request.stop_price is not None and order.stop_price is None:
        raise InvalidField("stopPrice", f"not allowed on a {order.type} order")
    instrument = catalogue.find(order.symbol)
    amounts: dict[str, Decimal | None] = {"qty": None, "price": None, "stop_price": None}
    for name, field, step in (
        ("qty", "qty", instrument.step),
        ("price", "price", instrument.tick),
        ("stop_price", "stopPrice", instrument.tick),
    ):
        value: Decimal | None = getattr(request, name)
        if value is not None:
            amount = amounts[name] = positive_amount(value, field)
            check_multiple(amount, step, field, instrument)
    qty, shown = amounts["qty"], order.display_qty
    if qty is not None and shown is not None and qty < shown:
        raise InvalidField(
            "qty", f"{plain(qty)} is less than displayQty, which is {plain(shown)}: cancel the order instead"
        )
    return AmendRequest(**amounts)
