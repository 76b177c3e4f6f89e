"""Formats orders and events for terminals and as JSON."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import typer

from switchyard.domain.journal.events import encode
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.values import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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


def table(
    columns: Iterable[str],
    rows: "Iterable[Sequence[str | Text]]",
    *,
    right: Collection[str] = (),
    no_wrap: Collection[str] = (),
    fold: bool = False,
    caption: str | None = None,
) -> "Table":
    """A table without lines; `right` and `no_wrap` name columns, `fold` wraps the others within words."""
    from rich.table import Table

    made = Table(box=None, caption=caption, caption_justify="left", pad_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in no_wrap, overflow="fold" if fold else "ellipsis")
    for row in rows:
        made.add_row(*row)
    return made


def sheet(rows: Mapping[str, str | None]) -> "Table":
    """A table of one thing's fields, without those that are None or empty."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            made.add_row(name, Text(value, STATUS_STYLES.get(value, "")))
    return made


def order_table(orders: Iterable[OrderSnapshot], caption: str | None = None, *, wide: bool = False) -> "Table":
    """A table of orders; within 80 columns, or with full ids and times."""
    from rich.text import Text

    rows = (
        (
            order.order_id if wide else short_id(order.order_id),
            f"{order.accepted_at:%Y-%m-%d %H:%M:%S}" if wide else f"{order.accepted_at:%m-%d %H:%M}",
            terms(order),
            Text(order.status, STATUS_STYLES.get(order.status, "")),
            result(order),
        )
        for order in orders
    )
    columns = ("Order", "Accepted", "Terms", "Status", "Result")
    # People copy the id into the next command, so other columns are wrapped first.
    return table(columns, rows, no_wrap=("Order", "Accepted"), fold=True, caption=caption)


def order_sheet(order: OrderSnapshot) -> "Table":
    """A table of one order's fields."""
    return sheet(
        {
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
    )


def event_table(events: Iterable["RecordedEvent"]) -> "Table":
    """A table of events, oldest first."""
    from switchyard.client.wire import read_anything

    rows = (
        (
            str(event.seq),
            f"{event.at:%m-%d %H:%M:%S.%f}"[:-3],
            event.type,
            event_detail(event.type, read_anything(bytes(event.data))),
        )
        for event in events
    )
    return table(("Seq", "At", "Event", "Detail"), rows, right=("Seq",))


def check_table(checked: "DryRun") -> "Table":
    """The pre-trade checks of a dry run, each with pass or fail."""
    rows = [(check.check, "pass" if check.passed else "FAIL", check.detail or "") for check in checked.checks]
    total = "nothing was placed"
    if checked.notional is not None:
        total = f"notional {plain(checked.notional)} {checked.currency or ''}".rstrip() + f"; {total}"
    rows.append(("", "pass" if checked.accepted else "FAIL", total))
    return table(("Check", "Result", "Detail"), rows)


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
    """The order's terms, for example `BUY 1 BTC @ 60000 GTC post only` or `SELL 1000 USDJPY stop 149 market DAY`."""
    price = "market" if order.price is None else f"@ {plain(order.price)}"
    stop = "" if order.stop_price is None else f"stop {plain(order.stop_price)} "
    shown = "" if order.display_qty is None else f" showing {plain(order.display_qty)}"
    wishes = f"{' post only' if order.post_only else ''}{' reduce only' if order.reduce_only else ''}{shown}"
    return f"{order.side} {plain(order.qty)} {order.symbol} {stop}{price} {order.time_in_force}{wishes}"


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
