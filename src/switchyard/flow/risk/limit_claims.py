"""The stateful limits of a new order: what it claims in its commit, and what follows if the commit says no.

Reads the account's exposure where a limit applies; writes nothing. The append is the judge: it checks the claim on the
rows of that moment, so a claim that was made on older totals cannot exceed a limit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import date, datetime

import msgspec

from switchyard.domain import decisions
from switchyard.domain.accounts.views import ExposureView, exposure_view
from switchyard.domain.errors import PositionMoved
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, order_id
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.checks import WAIVED_FOR_REDUCING, CheckResult, OrderContext, Violation
from switchyard.domain.risk.claims import (
    LIMITS_OF,
    NO_LIMITS,
    Breach,
    Claim,
    Limits,
    LimitSettings,
    Terms,
    claimed_by,
    described,
    is_reducing,
    reserved,
    terms_of,
)
from switchyard.domain.risk.exposure import AccountExposure, SymbolExposure, breach_of
from switchyard.ports.queries import Exposures

# How often an order may be found to be reducing, or not to be, after a commit said otherwise.
REVISIONS_MAX = 3
# Limits of accounts and symbols that are remembered; beyond it they are put together again.
REMEMBERED_MAX = 10_000


class LimitClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What the commit of one new order claims; with a violation the order is stored as rejected."""

    context: OrderContext
    terms: Terms
    limits: Limits = NO_LIMITS
    violation: Violation | None = None
    waived: Violation | None = None
    """The violation from which the order is exempt as long as it is reducing."""
    revisions: int = 0

    def rejected(self, violation: Violation | None) -> "LimitClaim":
        """Return the same with a violation, if there is one."""
        return self if violation is None else msgspec.structs.replace(self, violation=violation)

    @property
    def is_bound(self) -> bool:
        """Whether the commit has something to check."""
        return self.violation is None and (self.terms.reducing or self.limits is not NO_LIMITS)


class LimitClaims:
    """Decides the claims of new orders and amends under the limits of their accounts."""

    def __init__(self, settings: LimitSettings, exposures: Exposures) -> None:
        self._settings = settings
        self._exposures = exposures
        self._days = settings.trading_day
        self._day = -1, date.min
        self._since = -1, OrderId("")
        self._limits: OrderedDict[tuple[AccountId, str], Limits] = OrderedDict()

    async def claim_of(self, context: OrderContext, violation: Violation | None) -> LimitClaim:
        """Return what the order claims; `violation` is that of the stateless checks."""
        terms = terms_of(context.order, context.instrument, context.quote)
        if context.closes is not None:  # it claims only that it reduces the position
            terms = msgspec.structs.replace(terms, reducing=True, reduce_only=True)
            return LimitClaim(context=context, terms=terms, violation=None if _is_waivable(violation) else violation)
        if violation is not None and not _is_waivable(violation):
            return LimitClaim(context=context, terms=terms, violation=violation)
        limits = self._limits_for(context.account_id, context.order.symbol)
        if limits is NO_LIMITS and violation is None:
            return LimitClaim(context=context, terms=terms)
        claim = LimitClaim(context=context, terms=terms, limits=limits, waived=violation)
        is_rejected_otherwise = violation is not None or (terms.price is None and limits.needs_price)
        return self._as(claim, await self._is_reducing(context, fresh=is_rejected_otherwise))

    async def exposure_of(self, account: AccountId, symbol: str) -> SymbolExposure:
        """Return the account in a symbol, as of a moment after this call."""
        return await self._exposures.symbol_exposure(account, symbol, fresh=True)

    async def revised(self, claim: LimitClaim, breach: Breach) -> LimitClaim:
        """Return the claim, or the rejection, that follows from a breach: an order may turn out to be reducing.

        Raises PositionMoved for a close: its caller decides again.
        """
        if claim.terms.reduce_only:
            raise PositionMoved
        if breach.reason == "NOT_REDUCING":
            return self._as(claim, False)
        if claim.revisions < REVISIONS_MAX and await self._is_reducing(claim.context, fresh=True):
            return self._as(claim, True)
        return claim.rejected(Violation(breach.reason, self._described(claim, breach)))

    def for_commit(self, claim: LimitClaim, new_id: OrderId, now: datetime) -> Claim | None:
        """Return what the commit of the order has to check; None if that is nothing."""
        if not claim.is_bound:
            return None
        limits = claim.limits
        return Claim(
            order_id=new_id,
            limits=limits,
            day=None if limits.daily_loss is None else self._day_of(now),
            since=None if limits.window_orders is None else self._window_start(now),
            whole=claim.context.closes == "whole",
        )

    def day_end(self, now: datetime) -> datetime:
        """Return when the present trading day ends: a DAY order that is accepted now is not sent after it."""
        return self._days.end_of(now)

    def amend_limits(self, account: AccountId, symbol: str) -> Limits:
        """Return the limits that an amend has to keep: those on amounts, since it adds no order."""
        limits = self._limits_for(account, symbol)
        if limits is NO_LIMITS:
            return limits
        return msgspec.structs.replace(limits, open_orders=None, symbol_open_orders=None, window_orders=None)

    def amend_claim(self, order: Order, limits: Limits, now: datetime) -> Claim | None:
        """Return the claim of an amend that adds to what the order reserves now."""
        before = reserved(order)
        if limits == NO_LIMITS and not order.reducing:
            return None
        day = None if limits.daily_loss is None else self._day_of(now)
        return Claim(order_id=order.order_id, limits=limits, day=day, before=before, was_reducing=order.reducing)

    def amend_violation(self, order: Order, breach: Breach) -> Violation:
        """Return the rejection that follows from a breach by an amend."""
        return Violation(breach.reason, self._sentence(breach, order.account_id, order.symbol, order.currency))

    async def view(self, account: AccountId, now: datetime, symbol: str | None) -> ExposureView:
        """Return the account's exposure beside its limits."""
        exposure = await self._exposures.account_exposure(account, self._window_start(now))
        return exposure_view(account, exposure, self._settings, self._days.of(now), symbol)

    async def waived(self, context: OrderContext, results: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the results of other checks, without the violations from which a reducing order is exempt."""
        waives = any(_is_waivable(result.violation) for result in results) and await self._is_reducing(
            context, fresh=True
        )
        return [
            CheckResult(result.name, None) if waives and _is_waivable(result.violation) else result
            for result in results
        ]

    async def checks(self, context: OrderContext, now: datetime) -> list[CheckResult]:
        """Return the result of every limit for the dry run; nothing is claimed."""
        limits = self._limits_for(context.account_id, context.order.symbol)
        if limits is NO_LIMITS:
            return []
        terms = terms_of(context.order, context.instrument, context.quote)
        terms = msgspec.structs.replace(terms, reducing=await self._is_reducing(context, fresh=True))
        since = None if limits.window_orders is None else self._window_start(now)
        exposure = await self._exposures.account_exposure(context.account_id, since)
        results = []
        for code, names in LIMITS_OF.items():
            part = Limits(**{name: getattr(limits, name) for name in names})
            if part != NO_LIMITS:
                claim = LimitClaim(context=context, terms=terms, limits=part)
                results.append(CheckResult(code, self._violation(claim, exposure, now)))
        return results

    def _violation(self, claim: LimitClaim, exposure: AccountExposure, now: datetime) -> Violation | None:
        if claim.terms.reducing:
            return None
        if (unpriced := self._as(claim, False).violation) is not None:
            return unpriced
        context = claim.context
        order = decisions.accept(
            context.order,
            account=context.account_id,
            order_id=OrderId(""),
            venue=context.venue,
            venue_client_order_id=VenueClientOrderId(""),
            key=None,
            quote=None,
            now=now,
            terms=claim.terms,
        ).orders[0]
        bound = Claim(order_id=order.order_id, limits=claim.limits, day=self._days.of(now))
        breach = breach_of(exposure, exposure.window_orders, bound, order, claimed_by(order))
        return None if breach is None else Violation(breach.reason, self._described(claim, breach))

    def _as(self, claim: LimitClaim, reducing: bool) -> LimitClaim:
        """Return the claim of the order as a reducing one, or as one that has limits to keep."""
        terms = claim.terms
        if reducing != terms.reducing:
            terms = msgspec.structs.replace(terms, reducing=reducing)
            claim = msgspec.structs.replace(claim, terms=terms, revisions=claim.revisions + 1)
        if reducing:
            return claim
        if claim.waived is not None:
            return msgspec.structs.replace(claim, violation=claim.waived)
        if terms.price is None and claim.limits.needs_price:
            symbol = claim.context.order.symbol
            return claim.rejected(Violation("LIMIT_NO_PRICE", f"a limit needs a price, and {symbol} has no quote"))
        return claim

    async def _is_reducing(self, context: OrderContext, *, fresh: bool) -> bool:
        """Guess whether the order is reducing; the commit checks it. A rejection needs a fresh answer."""
        order = context.order
        here = await self._exposures.symbol_exposure(context.account_id, order.symbol, fresh=fresh)
        open_qty = here.buy_qty if order.side == "BUY" else here.sell_qty
        return is_reducing(here.position, open_qty, order.side, order.qty)

    def _day_of(self, now: datetime) -> date:
        """Return the trading day; a day begins with a minute, so the last answer is kept for one."""
        minute = int(now.timestamp() // 60)
        if minute != self._day[0]:
            self._day = minute, self._days.of(now)
        return self._day[1]

    def _limits_for(self, account: AccountId, symbol: str) -> Limits:
        key = (account, symbol)
        limits = self._limits.get(key)
        if limits is None:
            limits = self._limits[key] = self._settings.limits_of(*key)
            if len(self._limits) > REMEMBERED_MAX:
                self._limits.popitem(last=False)
        return limits

    def _window_start(self, now: datetime) -> OrderId:
        """Return the lowest id of the window that ends now: ids begin with their time in milliseconds."""
        start = int((now - self._settings.orders_window).timestamp() * 1000) + 1
        if start != self._since[0]:  # several orders come within a millisecond
            self._since = start, order_id(start, 0)
        return self._since[1]

    def _described(self, claim: LimitClaim, breach: Breach) -> str:
        context = claim.context
        return self._sentence(breach, context.account_id, context.order.symbol, claim.terms.currency)

    def _sentence(self, breach: Breach, account: AccountId, symbol: str, currency: str | None) -> str:
        seconds = self._settings.orders_window.total_seconds()
        setting = self._settings.setting_of(breach, account, symbol)
        return described(breach, account, symbol, currency, seconds, setting)


def _is_waivable(violation: Violation | None) -> bool:
    return violation is not None and violation.reason in WAIVED_FOR_REDUCING
