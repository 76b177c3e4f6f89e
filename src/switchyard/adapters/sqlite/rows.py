"""Between the domain's values and SQLite's rows."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain.events import JournalEvent
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.domain.positions import Position

# The columns stand in the order of the structs' fields: rows travel as arrays in that order.
ORDER_COLUMNS = ", ".join(Order.__struct_fields__)
OUTBOX_COLUMNS = ", ".join(OutboxRow.__struct_fields__)
KEY_COLUMNS = ", ".join(KeyEntry.__struct_fields__)
POSITION_COLUMNS = ", ".join(Position.__struct_fields__)
EVENT_COLUMNS = "seq, at, type, account_id, order_id, text, hash"

_strings = msgspec.json.Encoder()  # decimals as strings: SQLite reads a JSON number as a double


def arrays(rows: Sequence[Any]) -> str | None:
    """Rows as one JSON text of arrays, the form that an append takes in; none for none."""
    return _strings.encode([msgspec.structs.astuple(row) for row in rows]).decode() if rows else None


def text_array(values: Sequence[Any]) -> str:
    """Plain values as a JSON array."""
    return _strings.encode(values).decode()


def order(row: Sequence[Any]) -> Order:
    """An order from its columns."""
    values = dict(zip(Order.__struct_fields__, row, strict=True))
    for name in ("qty", "price", "stop_price", "filled_qty", "filled_notional"):
        if values[name] is not None:
            values[name] = Decimal(values[name])
    values["tags"] = tuple(msgspec.json.decode(values["tags"])) if values["tags"] != "[]" else ()
    for name in ("accepted_at", "updated_at"):
        values[name] = datetime.fromisoformat(values[name])
    return Order(**values)


def outbox_row(row: Sequence[Any]) -> OutboxRow:
    """An outbox row from its columns."""
    values = dict(zip(OutboxRow.__struct_fields__, row, strict=True))
    for name in ("next_attempt_at", "created_at", "updated_at"):
        values[name] = datetime.fromisoformat(values[name])
    return OutboxRow(**values)


def key_entry(row: Sequence[Any]) -> KeyEntry:
    """A key store entry from its columns."""
    values = dict(zip(KeyEntry.__struct_fields__, row, strict=True))
    for name in ("created_at", "expires_at"):
        values[name] = datetime.fromisoformat(values[name])
    return KeyEntry(**values)


def position(row: Sequence[Any]) -> Position:
    """A position from its columns."""
    values = dict(zip(Position.__struct_fields__, row, strict=True))
    for name in ("qty", "cost_basis", "realised_pnl", "trade_result", "high_water_mark"):
        values[name] = Decimal(values[name])
    values["updated_at"] = datetime.fromisoformat(values["updated_at"])
    return Position(**values)


def journal_event(row: Sequence[Any]) -> JournalEvent:
    """An event from its columns."""
    seq, at, kind, account_id, order_id, text, digest = row
    return JournalEvent(seq, datetime.fromisoformat(at), kind, account_id, order_id, text, digest)


def states(orders: Iterable[Sequence[Any]], outbox: Iterable[Sequence[Any]]) -> dict[str, OrderState]:
    """Orders with their outbox rows, by order id."""
    rows: dict[str, list[OutboxRow]] = {}
    for values in outbox:
        made = outbox_row(values)
        rows.setdefault(made.order_id, []).append(made)
    found = (order(values) for values in orders)
    return {made.order_id: OrderState(order=made, outbox=tuple(rows.get(made.order_id, ()))) for made in found}
