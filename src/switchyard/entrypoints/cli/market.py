"""`instruments` and `quotes`: commands that show a gateway's catalogue and market."""

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
    asked,
    collected,
)

if TYPE_CHECKING:
    from rich.table import Table

    from switchyard.client import AsyncClient

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

    listed = asked(url, account, lambda client: collected(client.instruments()))
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

    async def load(client: "AsyncClient") -> list[MarketQuote]:
        return [await client.quote(symbol, venue=venue) for symbol in symbols]

    found = asked(url, account, load)
    if as_json:
        output.print_json(found)
    else:
        output.console().print(quote_table(found))


def instrument_table(listed: list[ListedInstrument], *, wide: bool) -> "Table":
    """A table of instruments; unless `wide`, without the properties that no instrument sets."""
    defaults = msgspec.structs.asdict(Instrument(symbol=""))
    names = [
        name
        for name in (*defaults, "venue")
        if wide or (name not in _WIDE_ONLY and any(getattr(each, name) != defaults.get(name, "") for each in listed))
    ]
    titles = {name: name.replace("_", " ").capitalize() for name in names}
    amounts = [titles[name] for name in names if any(isinstance(getattr(each, name), Decimal) for each in listed)]
    rows = ([cell(getattr(each, name)) for name in names] for each in listed)
    return output.table(titles.values(), rows, right=amounts)


def quote_table(found: list[MarketQuote]) -> "Table":
    """A table of quotes."""
    figures = ("Bid", "Ask", "Spread", "Age")
    rows = (
        (each.symbol, each.venue, *map(plain, (each.bid, each.ask, each.ask - each.bid)), f"{each.age_seconds:.1f} s")
        for each in found
    )
    return output.table(("Symbol", "Venue", *figures), rows, right=figures)


def cell(value: Any) -> str:
    """A value of a table; `-` for none."""
    if value is None:
        return "-"
    return plain(value) if isinstance(value, Decimal) else str(value)
