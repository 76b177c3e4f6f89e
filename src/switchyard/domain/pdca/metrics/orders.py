"""From rows and events of the journal to the orders of a recheck. Pure; shared by all engines."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from switchyard.domain.events import EventType
from switchyard.domain.facts import Quote
from switchyard.domain.ids import OrderId, order_id
from switchyard.domain.pdca.metrics.inputs import StrategyOrder, Window
from switchyard.domain.reasons import split_reason

READ_EVENTS: Final[tuple[EventType, ...]] = ("OrderAccepted", "OrderUncertain")
"""The events that a recheck reads of an order."""
BLOCK_REASONS: Final = frozenset({"KILL_SWITCH", "REDUCE_ONLY"})
# An order's id is made when its request comes in, its acceptance is dated when it is decided.
_ACCEPTANCE_TAKES: Final = timedelta(hours=1)


class OrderRow(msgspec.Struct, frozen=True):
    """The part of an order's row that a recheck looks at."""

    order_id: OrderId
    accepted_at: datetime
    status: str
    reason: str | None


class _Data(msgspec.Struct):
    quote: Quote | None = None


_data = msgspec.json.Decoder(_Data)


def id_range(window: Window) -> tuple[OrderId, OrderId]:
    """Two ids between which all orders are that were accepted in the window, and some others."""
    first = max(window.start.timestamp() - _ACCEPTANCE_TAKES.total_seconds(), 0.0)
    return order_id(int(first * 1000), 0), order_id(int(window.end.timestamp() * 1000) + 1, 0)


def strategy_orders(rows: Iterable[OrderRow], events: Iterable[tuple[OrderId, EventType, str]]) -> list[StrategyOrder]:
    """The orders with what their events say; `events` are order id, type and data."""
    quotes: dict[OrderId, Quote | None] = {}
    doubted: set[OrderId] = set()
    for of_order, kind, data in events:
        if kind == "OrderUncertain":
            doubted.add(of_order)
        else:
            quotes[of_order] = _data.decode(data).quote
    return [
        StrategyOrder(
            order_id=row.order_id,
            accepted_at=row.accepted_at,
            rejected=row.status == "REJECTED",
            blocked=row.status == "REJECTED" and split_reason(row.reason or "")[0] in BLOCK_REASONS,
            doubted=row.order_id in doubted or row.status == "UNKNOWN",
            quote=quotes.get(row.order_id),
        )
        for row in rows
    ]
