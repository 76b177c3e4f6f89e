"""`positions`, `account`, `close`, `cancel-all`, `explain` and `exposure`: what an account has open, and why.

They call a gateway over HTTP; `explain` can also read the database beside a gateway.
"""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from switchyard.domain.accounts.views import ExposureView, PositionView
from switchyard.domain.ids import OrderId
from switchyard.domain.orders.closing import CancelledOrder
from switchyard.domain.orders.explain import EVENTS_MAX, Explanation, explain_order
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.values import plain
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import (
    DEFAULT_ACCOUNT,
    AccountOption,
    JsonOption,
    UrlOption,
    WideOption,
    asked,
    collected,
    full_order_id,
)
from switchyard.entrypoints.cli.trading import (
    OrderIdArgument,
    TimeoutOption,
    amount,
    duration,
    exit_by_end,
    final_state,
    watch,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from switchyard.client import Acknowledgement, AsyncClient
    from switchyard.ports.outbox import OutboxListing

_Row = tuple[str, str, int | Decimal, int | Decimal | None]


def exposure(
    symbol: Annotated[str | None, typer.Option("--symbol", help="Only this symbol.")] = None,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show what open orders reserve, the positions, and the account's limits."""
    view = asked(url, account, lambda client: client.exposure(symbol))
    if as_json:
        output.print_json(view)
    else:
        print_exposure(output.console(), view)


def print_exposure(console: "Console", view: ExposureView) -> None:
    """Print the account's totals beside its limits."""
    console.print(_account_table(view))
    if view.symbols:
        console.print()
        console.print(_symbol_table(view))
    if view.has_more:
        console.print("more symbols: ask for one with --symbol")


def _account_table(view: ExposureView) -> "Table":
    rows: list[_Row] = [
        ("open orders", "", view.open_orders, view.open_orders_max),
        (f"orders in {view.window_seconds:g} s", "", view.window_orders, view.window_orders_max),
    ]
    for money in view.currencies:
        unit = money.currency or "-"
        rows += [
            ("open notional", unit, money.open_notional, money.open_notional_max),
            ("gross exposure", unit, money.gross_exposure, money.gross_exposure_max),
            (f"result of {view.trading_day}", unit, money.daily_pnl, _negative(money.daily_loss_max)),
        ]
    return _table(f"Account {view.account_id}", rows)


def _symbol_table(view: ExposureView) -> "Table":
    rows: list[_Row] = []
    for row in view.symbols:
        rows += [
            (f"{row.symbol} position", "", row.position, row.position_max),
            ("  open orders", "", row.open_orders, row.open_orders_max),
            ("  may be bought", "", row.open_buy_qty, None),
            ("  may be sold", "", row.open_sell_qty, None),
            ("  open notional", row.currency or "-", row.open_notional, row.open_notional_max),
            ("  gross exposure", row.currency or "-", row.gross_exposure, row.gross_exposure_max),
        ]
    return _table("Symbol", rows)


def _table(title: str, rows: list[_Row]) -> "Table":
    shown = ((name, unit, _number(now), "" if limit is None else _number(limit)) for name, unit, now, limit in rows)
    return output.table((title, "", "Now", "Limit"), shown, right=("Now", "Limit"), no_wrap=("",))


def _number(value: int | Decimal) -> str:
    return plain(Decimal(value))


def _negative(limit: Decimal | None) -> Decimal | None:
    return None if limit is None else -limit


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(positions)
    app.command()(account)
    app.command()(close)
    app.command(name="cancel-all")(cancel_all)
    app.command()(explain)
    app.command()(exposure)
    app.command()(watch)


def positions(
    flat: Annotated[bool, typer.Option("--flat", help="Also closed positions, for their realised P&L.")] = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """List the account's positions."""

    listed = asked(url, account, lambda client: collected(client.positions(flat=flat)))
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

    view = asked(url, account, lambda client: client.account())
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

    async def request(client: "AsyncClient") -> "tuple[Acknowledgement, OrderSnapshot]":
        acknowledgement = await client.close_position(
            symbol, qty=qty, limit_price=limit, time_in_force=time_in_force, strategy=strategy, idempotency_key=key
        )
        if wait:
            return acknowledgement, await final_state(client, acknowledgement, longest)
        return acknowledgement, await client.order(acknowledgement.order_id)

    acknowledgement, order = asked(url, account, request)
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

    async def request(client: "AsyncClient") -> list[CancelledOrder]:
        orders: list[CancelledOrder] = []
        cursor: str | None = None
        while True:
            result = await client.cancel_all(symbol=symbol, strategy=strategy, venue=venue, cursor=cursor)
            orders += result.orders
            cursor = result.next_cursor
            if cursor is None:
                return orders

    orders = asked(url, account, request)
    if as_json:
        output.print_json(orders)
        return
    for order in orders:
        typer.echo(f"{order.order_id} {order.symbol} {order.result}")
    requested = sum(order.result == "CANCEL_REQUESTED" for order in orders)
    typer.echo(f"{len(orders)} open orders: {requested} wait for their venue, {len(orders) - requested} have ended")


def _position_table(listed: Sequence[PositionView]) -> "Table":
    def row(position: PositionView) -> tuple[str, ...]:
        average = "" if position.average_price is None else plain(position.average_price)
        amounts = (plain(position.qty), average, plain(position.cost_basis), plain(position.realised_pnl))
        return position.symbol, *amounts, position.currency or ""

    amounts = ("Position", "Average price", "Cost", "Realised P&L")
    return output.table(("Symbol", *amounts, ""), map(row, listed), right=amounts, no_wrap=("Symbol",))


def explain(
    order_id: OrderIdArgument,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Read the configured database, of any account; the full id is needed."),
    ] = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Tell the life of an order: checks, route, attempts, doubts, fills, cancels and its end."""

    async def load(client: "AsyncClient") -> Explanation:
        return await client.explain(await full_order_id(client, order_id))

    explained = asyncio.run(_from_database(order_id)) if offline else asked(url, account, load)
    if as_json:
        output.print_json(explained)
    else:
        for line in explained.lines:
            typer.echo(line)


async def _from_database(order_id: str) -> Explanation:
    from switchyard.bootstrap import outbox_listing, taken_orders
    from switchyard.domain.risk.checks import check_names
    from switchyard.entrypoints.control.client import deciders_of
    from switchyard.flow.sending.operator import standing
    from switchyard.settings import load_settings

    settings = load_settings()
    listing: OutboxListing = outbox_listing(settings)
    found = await listing.history_of(OrderId(order_id), EVENTS_MAX + 1)
    if found is None:
        raise typer.BadParameter(f"the database has no order {order_id!r}", param_hint="ORDER_ID")
    order, events = found
    decider = (await deciders_of(settings, listing, [order.venue]))[order.venue]
    return explain_order(
        order,
        events,
        check_names(settings.risk, taken_orders(settings), order.account_id, order.symbol),
        standing(await listing.rows_of(order.order_id), decider),
    )
