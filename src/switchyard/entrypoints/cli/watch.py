"""The command that shows orders as they move."""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.domain.orders import OrderSnapshot
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import DEFAULT_ACCOUNT, AccountOption, JsonOption, UrlOption, connect

if TYPE_CHECKING:
    from switchyard.client import Client, ClientError, Message

# More lines than this nobody reads while they move; a small terminal still shows the newest ones.
ROWS_MAX = 20


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(watch)


def watch(
    order_id: Annotated[str | None, typer.Argument(metavar="ORDER_ID", show_default=False)] = None,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Follow one order, or all of the account's, until Ctrl-C; with --json one line per message."""

    async def follow() -> None:
        async with connect(url, account) as client:
            await (print_messages(client, order_id) if as_json else show_table(client, order_id))

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        return  # the way to end it, so no failure


async def print_messages(client: "Client", order_id: str | None) -> None:
    """Print every message as it arrives, whatever its kind; losses are told on stderr."""
    from switchyard.client.wire import read_anything

    def tell(loss: "ClientError") -> None:
        typer.echo(f"switchyard: {loss}; reconnecting", err=True)

    async with aclosing(client.stream(order_id, on_disconnect=tell)) as messages:
        async for message in messages:
            output.print_json({"id": message.id, "event": message.event, "data": read_anything(message.data)})


async def show_table(client: "Client", order_id: str | None) -> None:
    """Keep a table of the orders that moved last."""
    from rich.live import Live

    board = Board()
    with Live(console=output.console(), auto_refresh=False) as live:

        def draw(state: str) -> None:
            live.update(output.order_table(board.newest(), caption=state), refresh=True)

        draw("connecting")
        lost = "connection lost, reconnecting"
        async with aclosing(client.stream(order_id, on_disconnect=lambda _: draw(lost))) as messages:
            async for message in messages:
                await board.take(message, client, order_id)
                draw("live; Ctrl-C ends")


class Board:
    """The orders on show, each in its newest version."""

    def __init__(self) -> None:
        self._orders: dict[str, OrderSnapshot] = {}

    async def take(self, message: "Message", client: "Client", order_id: str | None) -> None:
        """Bring the board up to date with a message."""
        from switchyard.client.wire import read

        match message.event:
            case "order_snapshot" | "order_update":
                self.put(read(message.data, OrderSnapshot))
            case "ready" | "resync_required" if order_id is None:
                # At the start and after a gap the stream alone does not tell how things stand.
                async for order in client.orders(limit=ROWS_MAX):
                    self.put(order)
            case "resync_required" if order_id is not None:
                self.put(await client.order(order_id))
            case _:
                pass

    def put(self, order: OrderSnapshot) -> None:
        """Show the order unless a newer version of it is shown already: replays and reloads may overtake each other."""
        shown = self._orders.get(order.order_id)
        if shown is None or shown.version < order.version:
            self._orders[order.order_id] = order
        if len(self._orders) > ROWS_MAX:
            oldest = min(self._orders.values(), key=lambda each: each.updated_at)
            del self._orders[oldest.order_id]

    def newest(self) -> list[OrderSnapshot]:
        """The orders, the last to move first."""
        return sorted(self._orders.values(), key=lambda each: each.updated_at, reverse=True)
