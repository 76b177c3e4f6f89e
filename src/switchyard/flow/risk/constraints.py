"""Check a request's own `risk_constraints`: the market's spread and the account's realised results.

Reads quotes and the account's results; writes nothing.
"""

from decimal import Decimal

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.errors import BrokerFailed, ConstraintViolated
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.do_order import DoOrderRequest
from switchyard.domain.values import ROUNDED, plain
from switchyard.ports.journal import Journal
from switchyard.ports.quotes import Quotes


class Constraints:
    """Checks `risk_constraints` before an order is placed."""

    def __init__(self, journal: Journal, quotes: Quotes, capital: Decimal) -> None:
        self._journal = journal
        self._quotes = quotes
        self._capital = capital

    async def check(self, account: AccountId, request: DoOrderRequest, venue: VenueName) -> None:
        """Raise ConstraintViolated for the first constraint that does not hold."""
        limits = request.risk_constraints
        if limits.max_spread is not None:
            await self._check_spread(venue, request.instrument, limits.max_spread)
        if limits.max_dd is None and limits.max_consecutive_loss is None:
            return
        key = (account, ACCOUNT_TOTAL)
        total = (await self._journal.load_positions([key])).get(key)
        if total is None:
            return  # the account has never closed a position
        losses = total.consecutive_losses
        if limits.max_consecutive_loss is not None and losses > limits.max_consecutive_loss:
            raise ConstraintViolated(
                "max_consecutive_loss",
                f"the account has {losses} consecutive losses, allowed are {limits.max_consecutive_loss}",
            )
        if limits.max_dd is not None and drawdown_ratio(total, self._capital) > limits.max_dd:
            raise ConstraintViolated(
                "max_dd",
                f"the account's drawdown of {plain(total.drawdown)} is above {plain(limits.max_dd)} of its capital "
                f"(DO_RISK_CAPITAL {plain(self._capital)} + high-water mark {plain(total.high_water_mark)})",
            )

    async def _check_spread(self, venue: VenueName, symbol: str, max_spread: Decimal) -> None:
        quote = await self._quotes.ask(venue, symbol)
        if quote is None or quote.bid <= 0:
            raise BrokerFailed(f"{venue} has no quote for {symbol}, so risk_constraints.max_spread cannot be checked")
        if spread_ratio(quote) > max_spread:
            raise ConstraintViolated("max_spread", f"the spread is wider than {max_spread} of the mid price")


def spread_ratio(quote: Quote) -> Decimal:
    """Return the spread as a ratio of the mid price."""
    mid = ROUNDED.divide(ROUNDED.add(quote.bid, quote.ask), Decimal(2))
    return ROUNDED.divide(ROUNDED.subtract(quote.ask, quote.bid), mid)


def drawdown_ratio(total: Position, capital: Decimal) -> Decimal:
    """Return the drawdown as a ratio of the capital at its high-water mark; infinite where that is zero."""
    if not total.drawdown:
        return Decimal(0)
    peak = ROUNDED.add(capital, total.high_water_mark)
    return ROUNDED.divide(total.drawdown, peak) if peak else Decimal("Infinity")
