"""An order's life as steps and as lines of text."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from switchyard.domain.events import EventType, JournalEvent
from switchyard.domain.explain.renderers import RENDERERS
from switchyard.domain.explain.teller import Kind, Teller
from switchyard.domain.explain.words import terms
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.lifecycle import Status, is_final
from switchyard.domain.orders import Order

# The events that are told: those of an order with 240 partial fills. The rest is in `GET /orders/{id}/events`.
EVENTS_MAX = 500


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One sentence about an event; an event may have several."""

    seq: int
    at: datetime
    event: EventType
    kind: Kind
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `GET /orders/{id}/explain`; the texts are for people and may change, the other members may not."""

    order_id: OrderId
    account_id: AccountId
    status: Status
    steps: tuple[Step, ...]
    lines: tuple[str, ...]
    """The whole story as text: a heading, the steps with their times, and where the order stands."""
    has_more: bool
    """Whether the order has more events than are told."""


def explain_order(
    order: Order, events: Sequence[JournalEvent], checks: Sequence[str], doubt: str | None = None
) -> Explanation:
    """Explain an order, given its row and its first events, in journal order.

    `checks`: the names of the pre-trade checks that the settings of today have for it. `doubt`: how a doubt about it
    ends, as the worker of its venue says.
    """
    told = events[:EVENTS_MAX]
    teller = Teller(order, checks)
    steps = tuple(
        Step(seq=event.seq, at=event.at, event=event.type, kind=said.kind, text=said.text)
        for event in told
        if event.type in RENDERERS
        for said in RENDERERS[event.type](teller, event)
    )
    has_more = len(events) > len(told)
    return Explanation(
        order_id=order.order_id,
        account_id=order.account_id,
        status=order.status,
        steps=steps,
        lines=tuple(_lines(order, steps, has_more, doubt)),
        has_more=has_more,
    )


def _lines(order: Order, steps: Sequence[Step], has_more: bool, doubt: str | None) -> Iterator[str]:
    yield f"Order {order.order_id} of account {order.account_id}"
    strategy = "" if order.strategy is None else f", for the strategy {order.strategy}"
    yield f"{terms(order)}{strategy}"
    day = None
    seq = None
    for step in steps:
        if step.at.date() != day:
            day = step.at.date()
            yield f"On {day} (UTC)"
        time = f"{step.at:%H:%M:%S}.{step.at.microsecond // 1000:03}" if step.seq != seq else " " * 12
        seq = step.seq
        yield f"  {time}  {step.text}"
    if has_more:
        yield f"  The first {EVENTS_MAX} events are told; all are in GET /orders/{order.order_id}/events."
    yield f"Now: {_standing(order)}"
    if doubt is not None:
        yield f"The doubt: {doubt}"


def _standing(order: Order) -> str:
    teller = Teller(order, ())
    match order.status:
        case "ACCEPTED":
            where = f"it waits to be sent to {order.venue}"
        case "SENDING":
            where = f"it is being sent to {order.venue}"
        case "UNKNOWN":
            where = f"it is in doubt whether {order.venue} has it"
        case "CANCEL_REQUESTED":
            where = f"a cancel is on its way to {order.venue}"
        case status:
            where = "it has ended" if is_final(status) else f"it is open at {order.venue}"
    return f"{order.status}, {where}; {teller.fills()}"
