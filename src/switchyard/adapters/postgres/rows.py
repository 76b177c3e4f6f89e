"""Between the domain's values and PostgreSQL's rows."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from switchyard.adapters.postgres.connection import Record
from switchyard.domain.events import JournalEvent
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.domain.positions import Position

_ORDER_FIELDS = Order.__struct_fields__
_OUTBOX_FIELDS = OutboxRow.__struct_fields__

ORDER_COLUMNS = ", ".join(_ORDER_FIELDS)
OUTBOX_COLUMNS = ", ".join(_OUTBOX_FIELDS)
POSITION_COLUMNS = ", ".join(Position.__struct_fields__)
EVENT_COLUMNS = ", ".join(JournalEvent.__struct_fields__)
STATE_COLUMNS = ", ".join([f"orders.{name}" for name in _ORDER_FIELDS] + [f"outbox.{name}" for name in _OUTBOX_FIELDS])
"""An order beside one of its outbox rows: joined in one statement, so that both are of one moment."""

_encoder = msgspec.json.Encoder()  # decimals as strings, times in RFC 3339: as `json_populate_recordset` reads them


def as_json(rows: Sequence[msgspec.Struct]) -> str:
    """Rows as `append_group` takes them."""
    return _encoder.encode(rows).decode()


def order(values: Iterable[Any]) -> Order:
    """An order from its columns."""
    fields = dict(zip(_ORDER_FIELDS, values, strict=True))
    fields["tags"] = tuple(fields["tags"])
    return Order(**fields)


def outbox_row(values: Iterable[Any]) -> OutboxRow:
    """An outbox row from its columns."""
    return OutboxRow(**dict(zip(_OUTBOX_FIELDS, values, strict=True)))


def position(values: Iterable[Any]) -> Position:
    """A position from its columns."""
    return Position(**dict(zip(Position.__struct_fields__, values, strict=True)))


def journal_event(record: Record) -> JournalEvent:
    """An event from its columns."""
    return JournalEvent(*record)


def states(records: Iterable[Sequence[Any]]) -> list[OrderState]:
    """Orders with their outbox rows, from rows of `STATE_COLUMNS` in which an order's rows stand together."""
    orders: dict[str, Order] = {}
    outbox: dict[str, list[OutboxRow]] = {}
    for values in records:
        order_values, outbox_values = values[: len(_ORDER_FIELDS)], values[len(_ORDER_FIELDS) :]
        order_id = order_values[0]
        if order_id not in orders:
            orders[order_id] = order(order_values)
            outbox[order_id] = []
        if outbox_values[0] is not None:
            outbox[order_id].append(outbox_row(outbox_values))
    return [OrderState(order=found, outbox=tuple(outbox[order_id])) for order_id, found in orders.items()]
