"""`exposure`: what an account's open orders reserve, and its limits. Calls a gateway over HTTP."""

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.domain.accounts.views import ExposureView
from switchyard.domain.values import plain
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import DEFAULT_ACCOUNT, AccountOption, JsonOption, UrlOption, connect

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_Row = tuple[str, str, int | Decimal, int | Decimal | None]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(exposure)


def exposure(
    symbol: Annotated[str | None, typer.Option("--symbol", help="Only this symbol.")] = None,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show what open orders reserve, the positions, and the account's limits."""

    async def load() -> ExposureView:
        async with connect(url, account) as client:
            return await client.exposure(symbol)

    view = asyncio.run(load())
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
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column(title)
    table.add_column("", no_wrap=True)
    table.add_column("Now", justify="right")
    table.add_column("Limit", justify="right")
    for name, unit, value, limit in rows:
        table.add_row(Text(name), Text(unit), _number(value), "" if limit is None else _number(limit))
    return table


def _number(value: int | Decimal) -> str:
    return plain(Decimal(value))


def _negative(limit: Decimal | None) -> Decimal | None:
    return None if limit is None else -limit
