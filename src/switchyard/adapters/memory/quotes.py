"""A market with one fixed price, for the null venue and for tests."""

from decimal import Decimal

from switchyard.domain.journal.facts import Quote
from switchyard.domain.values import ONE
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import TimedQuote


class FixedQuotes:
    """ports.quotes.QuoteSource that quotes the same price for every symbol."""

    def __init__(self, clock: Clock, price: Decimal = ONE) -> None:
        self._clock = clock
        self._price = price

    def current(self, symbol: str) -> TimedQuote:
        """Return the price as bid and ask, of this moment."""
        return TimedQuote(Quote(bid=self._price, ask=self._price, at=self._clock.now()), self._clock.monotonic())

    async def ask(self, symbol: str) -> TimedQuote:
        """Return the same."""
        return self.current(symbol)
