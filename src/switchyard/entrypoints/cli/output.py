"""How orders and events look on a terminal."""

from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import typer

from switchyard.domain.events import encode
from switchyard.domain.money import plain
from switchyard.domain.orders import OrderSnapshot

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from switchyard.client import RecordedEvent

# Wide enough for every column: what is piped into a file must not be cut to a terminal's width.
PIPE_WIDTH = 200

STATUS_STYLES = {
    "FILLED": "green",
    "PARTIALLY_FILLED": "green",
    "REJECTED": "red",
    "UNKNOWN": "bold red",
    "CANCELED": "dim",
    "EXPIRED": "dim",
}


def print_json(value: object) -> None:
    """One line of JSON, amounts as numbers."""
    typer.echo(encode(value))


def console() -> "Console":
    """Standard output for people; what the server sends is shown as text, never read as markup."""
    from rich.console import Console

    found = Console(markup=False, highlight=False, emoji=False)
    return found if found.is_terminal else Console(markup=False, highlight=False, emoji=False, width=PIPE_WIDTH)


def order_table(orders: Iterable[OrderSnapshot], caption: str | None = None) -> "Table":
    """Orders, one line each."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, caption=caption, caption_justify="left", pad_edge=False)
    # The id is what people copy into the next command: other columns give way first.
    table.add_column("Order", no_wrap=True)
    for name in ("Accepted", "Wanted", "Status", "Filled", "Reason"):
        table.add_column(name)
    for order in orders:
        table.add_row(
            Text(order.order_id),
            Text(f"{order.accepted_at:%m-%d %H:%M:%S}"),
            Text(wanted(order)),
            Text(order.status, STATUS_STYLES.get(order.status, "")),
            Text(filled(order)),
            Text(order.reason or ""),
        )
    return table


def order_sheet(order: OrderSnapshot) -> "Table":
    """One order, everything that is known of it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows = {
        "order": order.order_id,
        "account": order.account_id,
        "wanted": wanted(order),
        "status": order.status,
        "reason": order.reason,
        "filled": filled(order),
        "remaining": plain(order.remaining_qty),
        "venue": " ".join(filter(None, (order.venue, order.venue_order_id))),
        "client order id": order.client_order_id,
        "strategy": order.strategy,
        "tags": ", ".join(order.tags),
        "accepted": f"{order.accepted_at:%Y-%m-%d %H:%M:%S.%f} UTC",
        "updated": f"{order.updated_at:%Y-%m-%d %H:%M:%S.%f} UTC",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(value, STATUS_STYLES.get(value, "")))
    return table


def event_table(events: Iterable["RecordedEvent"]) -> "Table":
    """What happened, oldest first."""
    from rich.table import Table
    from rich.text import Text

    from switchyard.client.wire import read_anything

    table = Table(box=None, pad_edge=False)
    table.add_column("Seq", justify="right")
    for name in ("At", "Event", "Detail"):
        table.add_column(name)
    for event in events:
        detail = event_detail(read_anything(bytes(event.data)))
        table.add_row(str(event.seq), f"{event.at:%m-%d %H:%M:%S.%f}", Text(event.type), Text(detail))
    return table


def event_detail(data: Any) -> str:
    """The part of an event's data that tells people what came of it."""
    if not isinstance(data, dict):
        return ""
    order = data.get("order")
    shown = order if isinstance(order, dict) else data
    quantity, price = data.get("lastQty"), data.get("lastPrice")
    fill = f"{amount(quantity)} @ {amount(price)}" if quantity and price else None
    return " ".join(str(part) for part in (shown.get("status"), fill, shown.get("reason")) if part)


def wanted(order: OrderSnapshot) -> str:
    """What was asked for, as a trader would say it."""
    price = "market" if order.price is None else f"@ {plain(order.price)}"
    return f"{order.side} {plain(order.qty)} {order.symbol} {price} {order.time_in_force}"


def filled(order: OrderSnapshot) -> str:
    """How much of it was done, and at what price on average."""
    if not order.filled_qty:
        return "0"
    return plain(order.filled_qty) + ("" if order.avg_price is None else f" @ {plain(order.avg_price)}")


def amount(value: object) -> str:
    """A number from free-form data."""
    return plain(Decimal(value)) if isinstance(value, int | Decimal) else str(value)
