"""`positions`, `account`, `close` and `cancel-all`: what an account has open. Call a gateway over HTTP."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from switchyard.domain.accounts.views import AccountView, PositionView
from switchyard.domain.orders.closing import CancelledOrder
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.values import plain
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import (
    DEFAULT_ACCOUNT,
    AccountOption,
    JsonOption,
    UrlOption,
    WideOption,
    connect,
)
from switchyard.entrypoints.cli.exposure import print_exposure
from switchyard.entrypoints.cli.trading import TimeoutOption, amount, duration, exit_by_end, final_state

if TYPE_CHECKING:
    from rich.table import Table

    from switchyard.client import Acknowledgement


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(positions)
    app.command()(account)
    app.command()(close)
    app.command(name="cancel-all")(cancel_all)


def positions(
    flat: Annotated[bool, typer.Option("--flat", help="Also closed positions, for their realised P&L.")] = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """List the account's positions."""

    async def load() -> list[PositionView]:
        async with connect(url, account) as client:
            return [position async for position in client.positions(flat=flat)]

    listed = asyncio.run(load())
    if as_json:
        output.print_json(listed)
    else:
        output.console().print(_position_table(listed) if listed else "no positions")


def account(
    wide: WideOption = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show the account's positions, open orders, exposure and limits."""

    async def load() -> AccountView:
        async with connect(url, account) as client:
            return await client.account()

    view = asyncio.run(load())
    if as_json:
        output.print_json(view)
        return
    console = output.console(wide=wide)
    console.print(_position_table(view.positions) if view.positions else "no positions")
    if view.has_more_positions:
        console.print("more positions: see `switchyard positions`")
    console.print()
    console.print(output.order_table(view.orders, wide=wide) if view.orders else "no open orders")
    if view.has_more_orders:
        console.print("more open orders: see `switchyard orders`")
    console.print()
    print_exposure(console, view.exposure)


def close(
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL")],
    qty: Annotated[
        Decimal | None,
        typer.Option("--qty", parser=amount, metavar="QTY", help="Close only this much; by default everything."),
    ] = None,
    limit: Annotated[
        Decimal | None,
        typer.Option("--limit", parser=amount, metavar="PRICE", help="Limit price; without it a market order."),
    ] = None,
    time_in_force: Annotated[
        Literal["IOC", "FOK", "GTC"] | None,
        typer.Option("--tif", case_sensitive=False, metavar="IOC|FOK|GTC", help="Time in force, as for `order`."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key; by default a new random one. One key makes one order.")
    ] = None,
    strategy: Annotated[str | None, typer.Option("--strategy", help="Strategy that the order belongs to.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the order reaches a final state.")] = False,
    timeout: TimeoutOption = "5m",
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Close a position, or a part of it, with an order that can only reduce it."""
    longest = duration(timeout, "--timeout")

    async def request() -> "tuple[Acknowledgement, OrderSnapshot]":
        async with connect(url, account) as client:
            acknowledgement = await client.close_position(
                symbol,
                qty=qty,
                limit_price=limit,
                time_in_force=time_in_force,
                strategy=strategy,
                idempotency_key=key,
            )
            if wait:
                # On stderr: the id must be known even if the wait is interrupted, and stdout is for the result.
                typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}", err=True)
                return acknowledgement, await final_state(client, acknowledgement, longest)
            return acknowledgement, await client.order(acknowledgement.order_id)

    acknowledgement, order = asyncio.run(request())
    if as_json:
        output.print_json(order if wait else acknowledgement)
    elif wait:
        output.console().print(output.order_sheet(order))
    else:
        replayed = " (placed before under this key)" if acknowledgement.replayed else ""
        typer.echo(f"{order.order_id} {order.status} {output.terms(order)}{replayed}")
    if wait:
        exit_by_end(order, timeout)


def cancel_all(
    symbol: Annotated[str | None, typer.Option("--symbol", help="Only orders of this symbol.")] = None,
    strategy: Annotated[str | None, typer.Option("--strategy", help="Only orders of this strategy.")] = None,
    venue: Annotated[str | None, typer.Option("--venue", help="Only orders at this venue.")] = None,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Request the cancellation of all open orders of the account."""

    async def request() -> list[CancelledOrder]:
        orders: list[CancelledOrder] = []
        cursor: str | None = None
        async with connect(url, account) as client:
            while True:
                result = await client.cancel_all(symbol=symbol, strategy=strategy, venue=venue, cursor=cursor)
                orders += result.orders
                cursor = result.next_cursor
                if cursor is None:
                    return orders

    orders = asyncio.run(request())
    if as_json:
        output.print_json(orders)
        return
    for order in orders:
        typer.echo(f"{order.order_id} {order.symbol} {order.result}")
    requested = sum(order.result == "CANCEL_REQUESTED" for order in orders)
    typer.echo(f"{len(orders)} open orders: {requested} wait for their venue, {len(orders) - requested} have ended")


def _position_table(listed: Sequence[PositionView]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("Symbol", no_wrap=True)
    for name in ("Position", "Average price", "Cost", "Realised P&L"):
        table.add_column(name, justify="right")
    table.add_column("")
    for position in listed:
        average = "" if position.average_price is None else plain(position.average_price)
        amounts = (plain(position.qty), average, plain(position.cost_basis), plain(position.realised_pnl))
        table.add_row(Text(position.symbol), *amounts, Text(position.currency or ""))
    return table
