"""The orders of the demo's day as a function of its seed: who trades what, and how. Pure."""

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.orders.order import Side

Manner = Literal[
    "market",
    "resting",  # a limit order away from the market, cancelled later
    "amended",  # the same, with another quantity in between
    "repeated",  # a market order whose request is sent twice under one key
    "lots",  # by POST /do/order
    "too_large",  # above the account's limit
    "restricted",  # in a symbol that nobody may trade
]
# Per hundred orders. Repeats stay below 5 %, above which an alert fires.
MANNERS: dict[Manner, int] = {
    "market": 62,
    "resting": 16,
    "amended": 6,
    "repeated": 2,
    "lots": 8,
    "too_large": 4,
    "restricted": 2,
}


class Trader(msgspec.Struct, frozen=True):
    """A strategy and the account that it trades for."""

    account: str
    strategy: str
    owner: str
    symbols: tuple[str, ...]
    currency: str
    """Of its results: a strategy in several currencies has no return."""


TRADERS = (
    Trader("atlas", "trend.h1", "desk-asia", ("USDJPY", "EURJPY"), "JPY"),
    Trader("atlas", "breakout.m5", "desk-asia", ("BTC", "ETH"), "USD"),
    Trader("borealis", "meanrev.m1", "desk-europe", ("EURUSD", "GBPUSD"), "USD"),
    Trader("cirrus", "pairs.d1", "desk-us", ("AAPL", "MSFT"), "USD"),
    Trader("cirrus", "carry.d1", "desk-us", ("USDJPY", "EURUSD"), "USD"),
)
ACCOUNTS = tuple(dict.fromkeys(trader.account for trader in TRADERS))
# The smallest order in each symbol; orders are 1 to 10 of them.
UNITS = {
    "USDJPY": Decimal(1000),
    "EURJPY": Decimal(1000),
    "EURUSD": Decimal(1000),
    "GBPUSD": Decimal(1000),
    "AAPL": Decimal(10),
    "MSFT": Decimal(10),
    "BTC": Decimal("0.01"),
    "ETH": Decimal("0.1"),
}
LOT = Decimal(100_000)
TOO_LARGE = Decimal(80_000)


class PlannedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order that a trader will place; prices are taken from the market of that moment."""

    number: int
    trader: Trader
    manner: Manner
    symbol: str
    side: Side
    qty: Decimal


def planned_orders(seed: int) -> Iterator[PlannedOrder]:
    """The orders of the day, without an end; the same seed gives the same orders."""
    generator = random.Random(f"demo {seed}")
    names = list(MANNERS)
    number = 0
    while True:
        number += 1
        trader = generator.choice(TRADERS)
        manner = generator.choices(names, list(MANNERS.values()))[0]
        symbol = generator.choice(trader.symbols)
        side: Side = generator.choice(("BUY", "SELL"))
        qty = UNITS[symbol] * generator.randint(1, 10)
        if manner == "lots" and UNITS[symbol] < 1000:
            manner = "market"  # lots are for currencies
        if manner == "too_large":
            qty = TOO_LARGE
        if manner == "restricted":
            symbol = "XRP"
        yield PlannedOrder(number=number, trader=trader, manner=manner, symbol=symbol, side=side, qty=qty)
