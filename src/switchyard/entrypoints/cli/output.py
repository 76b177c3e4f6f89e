"""Formats orders and events for terminals and as JSON."""

from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import typer

from switchyard.domain.journal.events import encode
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.values import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from switchyard.client import DryRun, RecordedEvent

# The width of output into a file or pipe: that of a terminal, or enough for one line per row with --wide.
PIPE_WIDTH = 80
WIDE = 240
# Characters of an order id that the tables show: its random end, since orders of one day begin alike.
SHORT_ID_LENGTH = 8

STATUS_STYLES = {
    "FILLED": "green",
    "PARTIALLY_FILLED": "green",
    "REJECTED": "red",
    "UNKNOWN": "bold red",
    "CANCELED": "dim",
    "EXPIRED": "dim",
}


def print_json(value: object) -> None:
    """Print one line of JSON, with amounts as numbers."""
    typer.echo(encode(value))


def console(*, wide: bool = False) -> "Console":
    """Standard output for tables; text from the server is not interpreted as markup."""
    from rich.console import Console

    terminal = Console(markup=False, highlight=False, emoji=False)
    if wide or not terminal.is_terminal:
        return Console(markup=False, highlight=False, emoji=False, width=WIDE if wide else PIPE_WIDTH)
    return terminal


def short_id(order_id: str) -> str:
    """The end of an id, which commands accept in its place."""
    return order_id[-SHORT_ID_LENGTH:]


def order_table(orders: Iterable[OrderSnapshot], caption: str | None = None, *, wide: bool = False) -> "Table":
    """A table of orders; within 80 columns, or with full ids and times."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, caption=caption, caption_justify="left", pad_edge=False)
    # People copy the id into the next command, so other columns are wrapped first.
    for name in ("Order", "Accepted"):
        table.add_column(name, no_wrap=True)
    for name in ("Terms", "Status", "Result"):
        table.add_column(name, overflow="fold")
    for order in orders:
        table.add_row(
            Text(order.order_id if wide else short_id(order.order_id)),
            Text(f"{order.accepted_at:%Y-%m-%d %H:%M:%S}" if wide else f"{order.accepted_at:%m-%d %H:%M}"),
            Text(terms(order)),
            Text(order.status, STATUS_STYLES.get(order.status, "")),
            Text(result(order)),
        )
    return table


def order_sheet(order: OrderSnapshot) -> "Table":
    """A table of one order's fields."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows = {
        "order": order.order_id,
        "account": order.account_id,
        "terms": terms(order),
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
    """A table of events, oldest first."""
    from rich.table import Table
    from rich.text import Text

    from switchyard.client.wire import read_anything

    table = Table(box=None, pad_edge=False)
    table.add_column("Seq", justify="right")
    for name in ("At", "Event", "Detail"):
        table.add_column(name)
    for event in events:
        detail = event_detail(event.type, read_anything(bytes(event.data)))
        table.add_row(str(event.seq), f"{event.at:%m-%d %H:%M:%S.%f}"[:-3], Text(event.type), Text(detail))
    return table


def check_table(checked: "DryRun") -> "Table":
    """The pre-trade checks of a dry run, each with pass or fail."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("Check", "Result", "Detail"):
        table.add_column(name)
    for check in checked.checks:
        table.add_row(check.check, "pass" if check.passed else "FAIL", Text(check.detail or ""))
    total = "nothing was placed"
    if checked.notional is not None:
        total = f"notional {plain(checked.notional)} {checked.currency or ''}".rstrip() + f"; {total}"
    table.add_row("", "pass" if checked.accepted else "FAIL", Text(total))
    return table


def event_detail(kind: str, data: Any) -> str:
    """The status, fill and reason in an event's data."""
    if not isinstance(data, dict):
        return ""
    order = data.get("order")
    shown = order if isinstance(order, dict) else data
    if kind == "RiskRejected":
        return f"REJECTED {data.get('reason')}: {data.get('detail')}"
    status = "ACCEPTED" if kind == "OrderAccepted" else shown.get("status")
    quantity, price = data.get("lastQty"), data.get("lastPrice")
    fill = f"{amount(quantity)} @ {amount(price)}" if quantity and price else None
    return " ".join(str(part) for part in (status, fill, shown.get("reason")) if part)


def terms(order: OrderSnapshot) -> str:
    """The order's terms, for example `BUY 1000 USDJPY @ 151.2 GTC` or `SELL 1000 USDJPY stop 149 market DAY`."""
    price = "market" if order.price is None else f"@ {plain(order.price)}"
    stop = "" if order.stop_price is None else f"stop {plain(order.stop_price)} "
    return f"{order.side} {plain(order.qty)} {order.symbol} {stop}{price} {order.time_in_force}"


def result(order: OrderSnapshot) -> str:
    """What was filled, and the reason of an end without a fill."""
    return " ".join(part for part in (filled(order) if order.filled_qty else "", order.reason) if part)


def filled(order: OrderSnapshot) -> str:
    """The filled quantity and its average price."""
    if not order.filled_qty:
        return "0"
    return plain(order.filled_qty) + ("" if order.avg_price is None else f" @ {plain(order.avg_price)}")


def amount(value: object) -> str:
    """A number from decoded JSON, as plain text."""
    return plain(Decimal(value)) if isinstance(value, int | Decimal) else str(value)
