"""Check a request's own `risk_constraints`: the market's spread and the account's realised results.

Reads quotes and the account's positions; writes nothing.
"""

from decimal import Decimal

from switchyard.domain.do_order import DoOrderRequest
from switchyard.domain.errors import BrokerFailed, ConstraintViolated
from switchyard.domain.events import Quote
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.money import ROUNDED
from switchyard.domain.positions import Position
from switchyard.ports.queries import Queries
from switchyard.ports.quotes import Quotes

PAGE = 500


class Constraints:
    """Checks `risk_constraints` before an order is placed."""

    def __init__(self, queries: Queries, quotes: Quotes, capital: Decimal) -> None:
        self._queries = queries
        self._quotes = quotes
        self._capital = capital

    async def check(self, account: AccountId, request: DoOrderRequest, venue: VenueName) -> None:
        """Raise ConstraintViolated for the first constraint that does not hold."""
        limits = request.risk_constraints
        if limits.max_spread is not None:
            await self._check_spread(venue, request.instrument, limits.max_spread)
        if limits.max_dd is None and limits.max_consecutive_loss is None:
            return
        positions = await self._positions(account)
        if limits.max_consecutive_loss is not None:
            losses = max((position.consecutive_losses for position in positions), default=0)
            if losses > limits.max_consecutive_loss:
                raise ConstraintViolated(
                    "max_consecutive_loss",
                    f"the account has {losses} consecutive losses, allowed are {limits.max_consecutive_loss}",
                )
        if limits.max_dd is not None and any(
            drawdown_ratio(position, self._capital) > limits.max_dd for position in positions
        ):
            raise ConstraintViolated("max_dd", f"the account's drawdown is above {limits.max_dd}")

    async def _check_spread(self, venue: VenueName, symbol: str, max_spread: Decimal) -> None:
        quote = await self._quotes.ask(venue, symbol)
        if quote is None or quote.bid <= 0:
            raise BrokerFailed(f"{venue} has no quote for {symbol}, so risk_constraints.max_spread cannot be checked")
        if spread_ratio(quote) > max_spread:
            raise ConstraintViolated("max_spread", f"the spread is wider than {max_spread} of the mid price")

    async def _positions(self, account: AccountId) -> list[Position]:
        """Return the account's positions, one for each symbol that it ever traded, read in pages."""
        positions: list[Position] = []
        while True:
            page = await self._queries.positions(account, after=positions[-1].symbol if positions else "", limit=PAGE)
            positions += page
            if len(page) < PAGE:
                return positions


def spread_ratio(quote: Quote) -> Decimal:
    """Return the spread as a ratio of the mid price."""
    mid = ROUNDED.divide(ROUNDED.add(quote.bid, quote.ask), Decimal(2))
    return ROUNDED.divide(ROUNDED.subtract(quote.ask, quote.bid), mid)


def drawdown_ratio(position: Position, capital: Decimal) -> Decimal:
    """Return the drawdown as a ratio of the capital at its high-water mark; infinite where that is zero."""
    if not position.drawdown:
        return Decimal(0)
    peak = ROUNDED.add(capital, position.high_water_mark)
    return ROUNDED.divide(position.drawdown, peak) if peak else Decimal("Infinity")
