"""Conditions that a request sets for itself: the market's spread, and the account's results so far."""

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
    """Checks `risk_constraints` before an order is taken."""

    def __init__(self, queries: Queries, quotes: Quotes, capital: Decimal) -> None:
        self._queries = queries
        self._quotes = quotes
        self._capital = capital

    async def check(self, account: AccountId, request: DoOrderRequest, venue: VenueName) -> None:
        """Raise ConstraintViolated for the first condition that does not hold."""
        wanted = request.risk_constraints
        if wanted.max_spread is not None:
            quote = await self._quotes.ask(venue, request.instrument)
            if quote is None or quote.bid <= 0:
                raise BrokerFailed(f"{venue} gives no quote for {request.instrument}: spread unknown")
            if spread_ratio(quote) > wanted.max_spread:
                raise ConstraintViolated("max_spread", "the market's spread is wider")
        if wanted.max_dd is None and wanted.max_consecutive_loss is None:
            return
        positions = await self._positions(account)
        if wanted.max_consecutive_loss is not None:
            losses = max((position.consecutive_losses for position in positions), default=0)
            if losses > wanted.max_consecutive_loss:
                raise ConstraintViolated("max_consecutive_loss", f"{losses} trades in a row ended with a loss")
        if wanted.max_dd is not None and any(
            drawdown_ratio(position, self._capital) > wanted.max_dd for position in positions
        ):
            raise ConstraintViolated("max_dd", "realised results are further below their best")

    async def _positions(self, account: AccountId) -> list[Position]:
        """All of them, a page at a time: one for each symbol that the account ever held."""
        found: list[Position] = []
        while True:
            page = await self._queries.positions(account, after=found[-1].symbol if found else "", limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found


def spread_ratio(quote: Quote) -> Decimal:
    """The spread as a ratio of the mid."""
    mid = ROUNDED.divide(ROUNDED.add(quote.bid, quote.ask), Decimal(2))
    return ROUNDED.divide(ROUNDED.subtract(quote.ask, quote.bid), mid)


def drawdown_ratio(position: Position, capital: Decimal) -> Decimal:
    """How far results are below their best, as a ratio of the capital at its best; infinite where there is none."""
    if not position.drawdown:
        return Decimal(0)
    best = ROUNDED.add(capital, position.high_water_mark)
    return ROUNDED.divide(position.drawdown, best) if best else Decimal("Infinity")
