"""Room for an order under the stateful limits: what it claims in its commit, and what follows if the commit says no.

Reads the account's exposure where a limit applies; writes nothing. The append is the judge: it checks the claim on the
rows of that moment, so a claim that was made on older totals cannot exceed a limit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import date, datetime

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import PositionMoved
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, order_id
from switchyard.domain.orders import Order
from switchyard.domain.risk.checks import CheckResult
from switchyard.domain.risk.claims import LIMITS_OF, NO_LIMITS, Breach, Claim, Limits, claimed_by, described
from switchyard.domain.risk.exposure import AccountExposure, SymbolExposure, breach_of
from switchyard.domain.risk.exposure_view import ExposureView, exposure_view
from switchyard.domain.risk.limit_settings import LimitSettings
from switchyard.domain.risk.reasons import WAIVED_FOR_REDUCING, Violation
from switchyard.domain.risk.reservations import Terms, is_reducing, reserved, terms_of
from switchyard.domain.risk.subject import Subject
from switchyard.ports.exposures import Exposures

# How often an order may be found to be reducing, or not to be, after a commit said otherwise.
TURNS_MAX = 3
# Limits of accounts and symbols that are remembered; beyond it they are put together again.
REMEMBERED_MAX = 10_000


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What the commit of one new order claims; with a violation the order is stored as rejected."""

    subject: Subject
    terms: Terms
    limits: Limits = NO_LIMITS
    violation: Violation | None = None
    waived: Violation | None = None
    """The violation from which the order is exempt as long as it is reducing."""
    turns: int = 0
    whole: bool = False
    """Whether the order closes a whole position."""

    def rejected(self, violation: Violation | None) -> "Room":
        """Return the same with a violation, if there is one."""
        return self if violation is None else msgspec.structs.replace(self, violation=violation)

    @property
    def has_claim(self) -> bool:
        """Whether the commit has something to check."""
        return self.violation is None and (self.terms.reducing or self.limits is not NO_LIMITS)


class Rooms:
    """Makes room for new orders under the limits of their accounts."""

    def __init__(self, settings: LimitSettings, exposures: Exposures) -> None:
        self._settings = settings
        self._exposures = exposures
        self._days = settings.trading_day
        self._day = -1, date.min
        self._since = -1, OrderId("")
        self._limits: OrderedDict[tuple[AccountId, str], Limits] = OrderedDict()

    async def room(self, subject: Subject, violation: Violation | None) -> Room:
        """Return what the order claims; `violation` is that of the stateless checks."""
        limits = self._limits_of(subject)
        terms = terms_of(subject.order, subject.instrument, subject.quote)
        if violation is not None and not _is_waivable(violation):
            return Room(subject=subject, terms=terms, violation=violation)
        if limits is NO_LIMITS and violation is None:
            return Room(subject=subject, terms=terms)
        room = Room(subject=subject, terms=terms, limits=limits, waived=violation)
        is_rejected_otherwise = violation is not None or (terms.price is None and limits.needs_price)
        return self._as(room, await self._is_reducing(subject, fresh=is_rejected_otherwise))

    def closing_room(self, subject: Subject, violation: Violation | None, *, whole: bool) -> Room:
        """Return what an order claims that closes a position: only that it is reducing."""
        terms = terms_of(subject.order, subject.instrument, subject.quote)
        terms = msgspec.structs.replace(terms, reducing=True, reduce_only=True)
        room = Room(subject=subject, terms=terms, whole=whole)
        return room if _is_waivable(violation) else room.rejected(violation)

    async def exposure_of(self, account: AccountId, symbol: str) -> SymbolExposure:
        """Return the account in a symbol, as of a moment after this call."""
        return await self._exposures.symbol_exposure(account, symbol, fresh=True)

    async def revised(self, room: Room, breach: Breach) -> Room:
        """Return the claim, or the rejection, that follows from a breach: an order may turn out to be reducing.

        Raises PositionMoved for a close: its caller decides again.
        """
        if room.terms.reduce_only:
            raise PositionMoved
        if breach.reason == "NOT_REDUCING":
            return self._as(room, False)
        if room.turns < TURNS_MAX and await self._is_reducing(room.subject, fresh=True):
            return self._as(room, True)
        return room.rejected(Violation(breach.reason, self._described(room, breach)))

    def claim(self, room: Room, new_id: OrderId, now: datetime) -> Claim | None:
        """Return the claim of the order under its id."""
        if not room.has_claim:
            return None
        limits = room.limits
        return Claim(
            order_id=new_id,
            limits=limits,
            day=None if limits.daily_loss is None else self._day_of(now),
            since=None if limits.window_orders is None else self._window_start(now),
            whole=room.whole,
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

    async def waived(self, subject: Subject, results: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the results of other checks, without the violations from which a reducing order is exempt."""
        waives = any(_is_waivable(result.violation) for result in results) and await self._is_reducing(
            subject, fresh=True
        )
        return [
            CheckResult(result.name, None) if waives and _is_waivable(result.violation) else result
            for result in results
        ]

    async def checks(self, subject: Subject, now: datetime) -> list[CheckResult]:
        """Return the result of every limit for the dry run; nothing is claimed."""
        limits = self._limits_of(subject)
        if limits is NO_LIMITS:
            return []
        terms = terms_of(subject.order, subject.instrument, subject.quote)
        terms = msgspec.structs.replace(terms, reducing=await self._is_reducing(subject, fresh=True))
        since = None if limits.window_orders is None else self._window_start(now)
        exposure = await self._exposures.account_exposure(subject.account_id, since)
        results = []
        for code, names in LIMITS_OF.items():
            part = Limits(**{name: getattr(limits, name) for name in names})
            if part != NO_LIMITS:
                room = Room(subject=subject, terms=terms, limits=part)
                results.append(CheckResult(code, self._violation(room, exposure, now)))
        return results

    def _violation(self, room: Room, exposure: AccountExposure, now: datetime) -> Violation | None:
        if room.terms.reducing:
            return None
        if (unpriced := self._as(room, False).violation) is not None:
            return unpriced
        subject = room.subject
        order = decisions.accept(
            subject.order,
            account=subject.account_id,
            order_id=OrderId(""),
            venue=subject.venue,
            venue_client_order_id=VenueClientOrderId(""),
            key=None,
            quote=None,
            now=now,
            terms=room.terms,
        ).orders[0]
        claim = Claim(order_id=order.order_id, limits=room.limits, day=self._days.of(now))
        breach = breach_of(exposure, exposure.window_orders, claim, order, claimed_by(order))
        return None if breach is None else Violation(breach.reason, self._described(room, breach))

    def _as(self, room: Room, reducing: bool) -> Room:
        """Return the room of the order as a reducing one, or as one that has limits to keep."""
        terms = room.terms
        if reducing != terms.reducing:
            terms = msgspec.structs.replace(terms, reducing=reducing)
            room = msgspec.structs.replace(room, terms=terms, turns=room.turns + 1)
        if reducing:
            return room
        if room.waived is not None:
            return msgspec.structs.replace(room, violation=room.waived)
        if terms.price is None and room.limits.needs_price:
            symbol = room.subject.order.symbol
            return room.rejected(Violation("LIMIT_NO_PRICE", f"a limit needs a price, and {symbol} has no quote"))
        return room

    async def _is_reducing(self, subject: Subject, *, fresh: bool) -> bool:
        """Guess whether the order is reducing; the commit checks it. A rejection needs a fresh answer."""
        order = subject.order
        here = await self._exposures.symbol_exposure(subject.account_id, order.symbol, fresh=fresh)
        open_qty = here.buy_qty if order.side == "BUY" else here.sell_qty
        return is_reducing(here.position, open_qty, order.side, order.qty)

    def _day_of(self, now: datetime) -> date:
        """Return the trading day; a day begins with a minute, so the last answer is kept for one."""
        minute = int(now.timestamp() // 60)
        if minute != self._day[0]:
            self._day = minute, self._days.of(now)
        return self._day[1]

    def _limits_of(self, subject: Subject) -> Limits:
        return self._limits_for(subject.account_id, subject.order.symbol)

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

    def _described(self, room: Room, breach: Breach) -> str:
        subject = room.subject
        return self._sentence(breach, subject.account_id, subject.order.symbol, room.terms.currency)

    def _sentence(self, breach: Breach, account: AccountId, symbol: str, currency: str | None) -> str:
        seconds = self._settings.orders_window.total_seconds()
        setting = self._settings.setting_of(breach, account, symbol)
        return described(breach, account, symbol, currency, seconds, setting)


def _is_waivable(violation: Violation | None) -> bool:
    return violation is not None and violation.reason in WAIVED_FOR_REDUCING
