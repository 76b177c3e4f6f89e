"""Unrealised P&L of open positions at the market's mid price. Reads quotes; writes nothing."""

from decimal import Decimal

import msgspec

from switchyard.domain.books.holdings import Holding
from switchyard.domain.market.routing import Router
from switchyard.domain.values import EXACT, canonical
from switchyard.ports.quotes import QuoteLookup

NO_QUOTES = "NO_QUOTES"
"""This process has no market data."""
NO_QUOTE = "NO_QUOTE"
"""The venue has no quote for the symbol, or only a stale one."""


class Price(msgspec.Struct, frozen=True):
    """The mid price of a symbol, or why it is not known."""

    mid: Decimal | None
    reason: str | None = None


class Marks:
    """Prices for open positions; without quotes, none."""

    def __init__(self, quotes: QuoteLookup | None, router: Router) -> None:
        self._quotes = quotes
        self._router = router

    async def price(self, symbol: str) -> Price:
        """The mid price at the venue that the symbol's orders go to."""
        if self._quotes is None:
            return Price(None, NO_QUOTES)
        [quote] = await self._quotes.look_up([(self._router.venue_for(symbol), symbol)], waits=True)
        if quote is None:
            return Price(None, NO_QUOTE)
        return Price(canonical(EXACT.divide(EXACT.add(quote.bid, quote.ask), Decimal(2))))


def unrealised(holding: Holding, mid: Decimal) -> Decimal:
    """What the position would realise at the price."""
    value = EXACT.multiply(EXACT.multiply(holding.qty, mid), holding.multiplier)
    return canonical(EXACT.subtract(value, holding.cost_basis))
