"""`watch`: shows orders live, as a table or as JSON Lines."""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.domain.orders.order import OrderSnapshot
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import (
    DEFAULT_ACCOUNT,
    AccountOption,
    JsonOption,
    UrlOption,
    WideOption,
    connect,
    full_order_id,
)

if TYPE_CHECKING:
    from switchyard.client import AsyncClient, ClientError, StreamEvent

# More lines cannot be read while they change; a small terminal still shows the newest ones.
ROWS_MAX = 20


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(watch)


def watch(
    order_id: Annotated[
        str | None,
        typer.Argument(metavar="ORDER_ID", show_default=False, help="Id of one order, or its end; without it all."),
    ] = None,
    wide: WideOption = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Follow one order, or all of the account's, until Ctrl-C; with --json one line per message."""

    async def follow() -> None:
        async with connect(url, account) as client:
            full_id = None if order_id is None else await full_order_id(client, order_id)
            await (print_messages(client, full_id) if as_json else show_table(client, full_id, wide=wide))

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end: exit with 0


async def print_messages(client: "AsyncClient", order_id: str | None) -> None:
    """Print every message as it arrives; lost connections are reported on stderr."""
    from switchyard.client.wire import read_anything

    def report(loss: "ClientError") -> None:
        typer.echo(f"switchyard: {loss}; reconnecting", err=True)

    async with aclosing(client.stream(order_id, on_disconnect=report)) as events:
        async for event in events:
            message = event.message
            output.print_json({"id": message.id, "event": message.event, "data": read_anything(message.data)})


async def show_table(client: "AsyncClient", order_id: str | None, *, wide: bool) -> None:
    """Show a table of the orders that changed last."""
    from rich.live import Live

    board = Board()
    with Live(console=output.console(), auto_refresh=False) as live:

        def draw(state: str) -> None:
            live.update(output.order_table(board.newest(), caption=state, wide=wide), refresh=True)

        draw("connecting")
        caption = "connection lost, reconnecting"
        async with aclosing(client.stream(order_id, on_disconnect=lambda _: draw(caption))) as events:
            async for event in events:
                await board.take(event, client, order_id)
                draw("live; Ctrl-C to stop")


class Board:
    """The orders in the table, each in its newest version."""

    def __init__(self) -> None:
        self._orders: dict[str, OrderSnapshot] = {}

    async def take(self, event: "StreamEvent", client: "AsyncClient", order_id: str | None) -> None:
        """Update the orders from an event."""
        from switchyard.client import OrderUpdate, ResyncRequired, StreamReady

        match event:
            case OrderUpdate(order=order):
                self.put(order)
            case StreamReady() | ResyncRequired() if order_id is None:
                # At the start and after a gap the stream alone does not show the current state.
                async for order in client.orders(limit=ROWS_MAX):
                    self.put(order)
            case ResyncRequired() if order_id is not None:
                self.put(await client.order(order_id))
            case _:
                pass

    def put(self, order: OrderSnapshot) -> None:
        """Store the order unless a newer version is stored: replayed messages may arrive after a reload."""
        shown = self._orders.get(order.order_id)
        if shown is None or shown.version < order.version:
            self._orders[order.order_id] = order
        if len(self._orders) > ROWS_MAX:
            oldest = min(self._orders.values(), key=lambda order: order.updated_at)
            del self._orders[oldest.order_id]

    def newest(self) -> list[OrderSnapshot]:
        """The orders, the last changed first."""
        return sorted(self._orders.values(), key=lambda order: order.updated_at, reverse=True)
