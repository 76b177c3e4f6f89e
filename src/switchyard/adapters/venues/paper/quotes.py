"""The paper exchange's market as a source of quotes, in every process.

The market is a function of symbol and time, and all processes share the database's time. So a gateway computes the same
quotes as the worker in which the exchange runs, without asking it. It calls nothing.
"""

from switchyard.adapters.venues.paper.market import Market
from switchyard.domain.market.instruments import Catalogue
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import TimedQuote


class PaperQuotes:
    """ports.quote_source.QuoteSource of a paper exchange with the same catalogue, clock and seed."""

    def __init__(self, catalogue: Catalogue, clock: Clock, seed: int = 0) -> None:
        self._market = Market(catalogue, seed)
        self._clock = clock

    def current(self, symbol: str) -> TimedQuote:
        """Return the market of this moment."""
        return TimedQuote(self._market.quote(symbol, self._clock.now()), self._clock.monotonic())

    async def ask(self, symbol: str) -> TimedQuote:
        """Return the same."""
        return self.current(symbol)
