"""Converts between domain structs and SQLite rows: JSON arrays on the way in, column tuples on the way out."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.adapters.tables import IDEMPOTENCY_KEYS, KILLS, ORDERS, OUTBOX_ORDERS, POSITIONS
from switchyard.domain.accounts.positions import Position
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.risk.kills import Kill

_encoder = msgspec.json.Encoder()  # decimals as strings: SQLite reads a JSON number as a double


_ORDER_AMOUNTS = (
    "qty",
    "price",
    "stop_price",
    "filled_qty",
    "filled_notional",
    "multiplier",
    "reserve_price",
    "amend_qty",
    "amend_reserve_price",
    "display_qty",
)


def json_rows(structs: Sequence[msgspec.Struct]) -> str | None:
    """Structs as a JSON array of arrays, the form of `AppendGroup`; None for no structs."""
    return json_cells([msgspec.structs.astuple(struct) for struct in structs])


def json_cells(cells: Sequence[tuple[Any, ...]]) -> str | None:
    """The values of rows as a JSON array of arrays; None for no rows."""
    return _encoder.encode(cells).decode() if cells else None


def json_array(values: Sequence[Any]) -> str:
    """Plain values as a JSON array."""
    return _encoder.encode(values).decode()


def parameters(values: Iterable[Any]) -> dict[str, Any]:
    """Values by the numbers of their parameters, `$1`, `$2`, …: times in one form, lists as JSON.

    SQLite takes such a number for a name: a plain sequence would be bound in the order in which the text names them.
    """
    return {str(number): _stored(value) for number, value in enumerate(values, 1)}


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return json_array([stamp(each) if isinstance(each, datetime) else each for each in value])
    return value


def order(row: Sequence[Any]) -> Order:
    """An order from its columns."""
    values = dict(zip(ORDERS.columns, row, strict=True))
    for name in _ORDER_AMOUNTS:
        if values[name] is not None:
            values[name] = Decimal(values[name])
    values["tags"] = tuple(msgspec.json.decode(values["tags"])) if values["tags"] != "[]" else ()
    for name in ("accepted_at", "updated_at"):
        values[name] = datetime.fromisoformat(values[name])
    for name in ("requested_at", "expires_at"):
        if values[name] is not None:
            values[name] = datetime.fromisoformat(values[name])
    for name in ("reducing", "reduce_only", "post_only", "venue_reduce_only"):
        values[name] = bool(values[name])
    return Order(**values)


def outbox_row(row: Sequence[Any]) -> OutboxRow:
    """An outbox row from its columns."""
    values = dict(zip(OUTBOX_ORDERS.columns, row, strict=True))
    for name in ("next_attempt_at", "created_at", "updated_at"):
        values[name] = datetime.fromisoformat(values[name])
    values["bytes_sent"] = bool(values["bytes_sent"])
    return OutboxRow(**values)


def key_entry(row: Sequence[Any]) -> KeyEntry:
    """A key store entry from its columns."""
    values = dict(zip(IDEMPOTENCY_KEYS.columns, row, strict=True))
    for name in ("created_at", "expires_at"):
        values[name] = datetime.fromisoformat(values[name])
    return KeyEntry(**values)


def position(row: Sequence[Any]) -> Position:
    """A position from its columns."""
    values = dict(zip(POSITIONS.columns, row, strict=True))
    for name in ("qty", "cost_basis", "realised_pnl", "trade_result", "high_water_mark", "multiplier", "day_pnl"):
        values[name] = Decimal(values[name])
    values["updated_at"] = datetime.fromisoformat(values["updated_at"])
    values["day"] = None if values["day"] is None else date.fromisoformat(values["day"])
    return Position(**values)


def kill(row: Sequence[Any]) -> Kill:
    """A kill from its columns."""
    values = dict(zip(KILLS.columns, row, strict=True))
    values["set_at"] = datetime.fromisoformat(values["set_at"])
    if values["cleared_at"] is not None:
        values["cleared_at"] = datetime.fromisoformat(values["cleared_at"])
    return Kill(**values)


def journal_event(row: Sequence[Any]) -> JournalEvent:
    """An event from `tables.EVENT_COLUMNS`."""
    seq, at, kind, account_id, order_id, text, digest = row
    return JournalEvent(seq, datetime.fromisoformat(at), kind, account_id, order_id, text, digest)


def states(orders: Iterable[Sequence[Any]], outbox: Iterable[Sequence[Any]]) -> dict[str, OrderState]:
    """Orders with their outbox rows, by order id."""
    outbox_of: dict[str, list[OutboxRow]] = {}
    for values in outbox:
        message = outbox_row(values)
        outbox_of.setdefault(message.order_id, []).append(message)
    return {
        loaded.order_id: OrderState(order=loaded, outbox=tuple(outbox_of.get(loaded.order_id, ())))
        for loaded in map(order, orders)
    }
