"""Pre-trade risk: the checks, the rate of an account, and the constraints of `/do/order`.

Reads nothing but its checks and rates; counts and logs rejections. The commit stores a violation as a rejected
order (ADR 18).
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import structlog

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.errors import BrokerFailed, ConstraintViolated
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.do_order import DoOrderRequest
from switchyard.domain.risk.checks import RISK_REASONS, Check, CheckResult, Kind, OrderContext, Violation, kind_of
from switchyard.domain.values import ROUNDED, plain
from switchyard.ports.cache import TokenBuckets
from switchyard.ports.journal import Journal
from switchyard.ports.quotes import Quotes
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# About 200 bytes each. Beyond this number all are forgotten, and checked again.
KINDS_MAX = 10_000


class PreTradeRisk:
    """One list of checks, used for new orders and for the dry run."""

    def __init__(self, checks: Sequence[Check], metrics: Metrics) -> None:
        self._checks = tuple(checks)
        self._checks_of_amounts = tuple(check for check in checks if not check.of_kind)
        self._passed: set[Kind] = set()
        """Kinds of orders that have passed the checks which depend on nothing else."""
        # Every series from the start: an alert on a counter that appears with its first rejection misses that one.
        self._rejections = {reason: metrics.risk_rejections.labels(reason) for reason in RISK_REASONS}

    def judge(self, subject: OrderContext) -> Violation | None:
        """Return the violation of the first check that fails; none where all pass."""
        kind = kind_of(subject)
        is_known = kind in self._passed
        for check in self._checks_of_amounts if is_known else self._checks:
            violation = check.judge(subject)
            if violation is not None:
                return violation
        if not is_known:
            if len(self._passed) >= KINDS_MAX:
                self._passed.clear()
            self._passed.add(kind)
        return None

    def checks(self, subject: OrderContext) -> list[CheckResult]:
        """Return the result of every check."""
        return [CheckResult(check.name, check.judge(subject)) for check in self._checks]

    def note_rejection(self, account: AccountId, order_id: OrderId | None, violation: Violation) -> None:
        """Count and log a rejected order; `order_id` is none where nothing was stored."""
        self._rejections[violation.reason].inc()
        log.info(
            "order_risk_rejected",
            account_id=account,
            order_id=order_id,
            reason=violation.reason,
            detail=violation.detail,
        )


class OrderRate:
    """Limits how fast an account sends new orders; without buckets there is no limit."""

    def __init__(self, buckets: TokenBuckets | None = None) -> None:
        self._buckets = buckets

    async def take(self, account: AccountId) -> Violation | None:
        """Take a token for a new order; returns the violation where there is none."""
        return None if self._buckets is None else _violation(await self._buckets.take(account))

    async def put_back(self, account: AccountId) -> None:
        """Return the token of a request that was a repeat."""
        if self._buckets is not None:
            await self._buckets.put_back(account)

    async def checks(self, account: AccountId) -> list[CheckResult]:
        """Return whether there is a token, for the dry run; takes none."""
        if self._buckets is None:
            return []
        return [CheckResult("RISK_RATE", _violation(await self._buckets.wait(account)))]


def _violation(wait: timedelta | None) -> Violation | None:
    if wait is None:
        return None
    seconds = math.ceil(wait.total_seconds() * 1000) / 1000
    detail = f"the account sends orders too fast: the next one is possible in {seconds:g} s (RISK_RATE_PER_SEC)"
    return Violation("RISK_RATE", detail, retry_after=wait)


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
