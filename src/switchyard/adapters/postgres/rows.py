"""Converts PostgreSQL rows to domain structs."""

from collections.abc import Iterable, Sequence
from typing import Any

from switchyard.adapters.tables import IDEMPOTENCY_KEYS, KILLS, ORDERS, OUTBOX_ORDERS, POSITIONS
from switchyard.domain.accounts.positions import Position
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.risk.kills import Kill

STATE_COLUMNS = f"{ORDERS.qualified('orders')}, {OUTBOX_ORDERS.qualified('outbox')}"
"""An order beside one of its outbox rows, joined in one statement so that both come from one snapshot."""

_STATES = f"""
SELECT {STATE_COLUMNS} FROM orders LEFT JOIN outbox_orders AS outbox USING (order_id)
WHERE orders.{{column}} = ANY($1) ORDER BY orders.order_id, outbox.kind DESC, outbox.number
"""
STATES_BY_ORDER_ID = _STATES.format(column="order_id")
STATES_BY_CLIENT_ID = _STATES.format(column="venue_client_order_id")
STATES_BY_AMEND_ID = f"""
SELECT {STATE_COLUMNS} FROM orders LEFT JOIN outbox_orders AS outbox USING (order_id)
WHERE orders.order_id IN (SELECT order_id FROM outbox_orders WHERE venue_client_order_id = ANY($1) AND kind = 'amend')
ORDER BY orders.order_id, outbox.kind DESC, outbox.number
"""
# The rows of `unfinished_orders`, each with its order: an index lookup under any plan.
UNFINISHED = """
unfinished_orders AS open CROSS JOIN LATERAL (
    SELECT * FROM orders AS own WHERE own.order_id = open.order_id LIMIT 1
) AS orders
""".strip()
_ORDER_WIDTH = len(ORDERS.columns)


def order(values: Iterable[Any]) -> Order:
    """An order from its columns."""
    fields = dict(zip(ORDERS.columns, values, strict=True))
    fields["tags"] = tuple(fields["tags"])
    return Order(**fields)


def outbox_row(values: Iterable[Any]) -> OutboxRow:
    """An outbox row from its columns."""
    return OutboxRow(**dict(zip(OUTBOX_ORDERS.columns, values, strict=True)))


def position(values: Iterable[Any]) -> Position:
    """A position from its columns."""
    return Position(**dict(zip(POSITIONS.columns, values, strict=True)))


def kill(values: Iterable[Any]) -> Kill:
    """A kill from its columns."""
    return Kill(**dict(zip(KILLS.columns, values, strict=True)))


def key_entry(values: Iterable[Any]) -> KeyEntry:
    """A key store entry from its columns."""
    return KeyEntry(**dict(zip(IDEMPOTENCY_KEYS.columns, values, strict=True)))


def journal_event(record: Sequence[Any]) -> JournalEvent:
    """An event from `tables.EVENT_COLUMNS`."""
    return JournalEvent(*record)


def states(records: Iterable[Sequence[Any]]) -> list[OrderState]:
    """Orders with their outbox rows, from rows of `STATE_COLUMNS` in which the rows of an order are adjacent."""
    orders: dict[str, Order] = {}
    outbox: dict[str, list[OutboxRow]] = {}
    for values in records:
        order_values, outbox_values = values[:_ORDER_WIDTH], values[_ORDER_WIDTH:]
        order_id = order_values[0]
        if order_id not in orders:
            orders[order_id] = order(order_values)
            outbox[order_id] = []
        if outbox_values[0] is not None:
            outbox[order_id].append(outbox_row(outbox_values))
    return [OrderState(order=loaded, outbox=tuple(outbox[order_id])) for order_id, loaded in orders.items()]
