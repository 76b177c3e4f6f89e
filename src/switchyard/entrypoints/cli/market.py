"""`instruments` and `quotes`: commands that show a gateway's catalogue and market."""

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from switchyard.domain.market.instruments import Instrument
from switchyard.domain.market.quotes import ListedInstrument, MarketQuote, as_listed
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

if TYPE_CHECKING:
    from rich.table import Table

# These follow from the symbol in nearly every case, so only --wide shows them.
_WIDE_ONLY = frozenset({"base", "quote"})


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (instruments, quotes):
        app.command()(command)


def instruments(
    wide: WideOption = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """List the instruments that can be traded, with their steps, ticks and limits."""

    async def load() -> list[ListedInstrument]:
        async with connect(url, account) as client:
            return [instrument async for instrument in client.instruments()]

    listed = asyncio.run(load())
    if as_json:
        output.print_json([as_listed(instrument, instrument.venue) for instrument in listed])
    else:
        output.console(wide=wide).print(instrument_table(listed, wide=wide) if listed else "no instruments")


def quotes(
    symbols: Annotated[list[str], typer.Argument(metavar="SYMBOL...")],
    venue: Annotated[
        str | None, typer.Option("--venue", help="Venue; by default the one that the symbol's orders go to.")
    ] = None,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show the market of one or more symbols: bid, ask and the age of the quote."""

    async def load() -> list[MarketQuote]:
        async with connect(url, account) as client:
            return [await client.quote(symbol, venue=venue) for symbol in symbols]

    found = asyncio.run(load())
    if as_json:
        output.print_json(found)
    else:
        output.console().print(quote_table(found))


def instrument_table(listed: list[ListedInstrument], *, wide: bool) -> "Table":
    """A table of instruments; unless `wide`, without the properties that no instrument sets."""
    from rich.table import Table
    from rich.text import Text

    defaults = msgspec.structs.asdict(Instrument(symbol=""))
    names = [
        name
        for name in (*defaults, "venue")
        if wide or (name not in _WIDE_ONLY and any(getattr(each, name) != defaults.get(name, "") for each in listed))
    ]
    table = Table(box=None, pad_edge=False)
    for name in names:
        is_amount = any(isinstance(getattr(each, name), Decimal) for each in listed)
        table.add_column(name.replace("_", " ").capitalize(), justify="right" if is_amount else "left")
    for each in listed:
        table.add_row(*(Text(cell(getattr(each, name))) for name in names))
    return table


def quote_table(found: list[MarketQuote]) -> "Table":
    """A table of quotes."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("Symbol", "Venue"):
        table.add_column(name)
    for name in ("Bid", "Ask", "Spread", "Age"):
        table.add_column(name, justify="right")
    for each in found:
        prices = (plain(each.bid), plain(each.ask), plain(each.ask - each.bid))
        table.add_row(Text(each.symbol), Text(each.venue), *prices, f"{each.age_seconds:.1f} s")
    return table


def cell(value: Any) -> str:
    """A value of a table; `-` for none."""
    if value is None:
        return "-"
    return plain(value) if isinstance(value, Decimal) else str(value)
