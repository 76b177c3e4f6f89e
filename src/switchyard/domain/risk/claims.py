"""Stateful limits: their settings, what a new order claims and reserves, the trading day and the order window. Pure.

The commit judges a claim, and a breach is described here.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import ROUND_CEILING, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import Final, Literal, assert_never
from zoneinfo import ZoneInfo

import msgspec

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order, OrderRequest, Side, order_digest
from switchyard.domain.values import DECIMALS_MAX, ONE, ZERO, canonical, plain

# Quantity times price times multiplier has at most 69 digits, a sum of a million of them 75.
SUMS = Context(prec=100, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
_UPWARD = Context(prec=60, rounding=ROUND_CEILING, traps=[InvalidOperation, DivisionByZero, Overflow])
_HUNDRED = Decimal(100)
_SMALLEST = Decimal(1).scaleb(-DECIMALS_MAX)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How an order is reserved while it is open; decided when it is accepted, and part of its row from then on."""

    currency: str | None = None
    """The settlement currency; sums are never made across currencies."""
    multiplier: Decimal = ONE
    price: Decimal | None = None
    """The worst price that is assumed for the rest of the order; none where no market was known."""
    reducing: bool = False
    """Whether it can only make the account's position smaller, whatever else is filled before it."""
    reduce_only: bool = False
    """Whether it closes a position, so that it is never accepted as anything but reducing."""


NO_TERMS = Terms()


class Reserved(msgspec.Struct, frozen=True, gc=False):
    """What one order reserves."""

    qty: Decimal
    notional: Decimal
    """In the settlement currency; zero where the order has no reserve price."""


def terms_of(request: OrderRequest, instrument: Instrument, quote: Quote | None) -> Terms:
    """The terms of a new order, before it is known whether it is reducing."""
    return Terms(
        currency=instrument.settlement or None,
        multiplier=instrument.multiplier,
        price=reserve_price(request, quote, instrument.collar_percent),
    )


def reserve_price(request: OrderRequest, quote: Quote | None, collar_percent: Decimal | None) -> Decimal | None:
    """The limit price, or the market price of the order's side plus the collar; none without a market.

    A limit price is the least that a SELL gets: one below the bid is filled at the market.
    """
    if request.stop_price is not None:
        return _stop_reserve_price(request, request.stop_price, quote, collar_percent)
    if quote is None:
        return request.price
    if request.price is not None and (request.side == "BUY" or request.price >= quote.bid):
        return request.price
    return _with_collar(quote.ask if request.side == "BUY" else quote.bid, collar_percent)


def _stop_reserve_price(
    request: OrderRequest, stop_price: Decimal, quote: Quote | None, collar_percent: Decimal | None
) -> Decimal | None:
    """The stop price plus the collar, or the limit price where that is worse or the most that a BUY can pay.

    A BUY STOP order pays the market where it has passed the stop price already; none if that is not known.
    """
    if request.side == "SELL":  # it is filled at the stop price or below, or at its limit price above
        worst = _with_collar(stop_price, collar_percent)
        return worst if request.price is None else max(worst, request.price)
    if request.price is not None:
        return request.price
    return None if quote is None else _with_collar(max(stop_price, quote.ask), collar_percent)


def _with_collar(price: Decimal, collar_percent: Decimal | None) -> Decimal:
    if not collar_percent:
        return price
    factor = _UPWARD.add(ONE, _UPWARD.divide(collar_percent, _HUNDRED))
    return canonical(_UPWARD.quantize(_UPWARD.multiply(price, factor), _SMALLEST))


def reserved(order: Order) -> Reserved | None:
    """What the order reserves; none when it has ended. An order in doubt reserves all that may still be filled.

    While an amend is not settled, the venue may have either amounts: the larger quantity and the larger notional count.
    """
    if is_final(order.status):
        return None
    held = _rest(order, order.qty, order.reserve_price)
    if order.amend_qty is None:
        return held
    amended = _rest(order, order.amend_qty, order.amend_reserve_price)
    return Reserved(max(held.qty, amended.qty), max(held.notional, amended.notional))


def _rest(order: Order, qty: Decimal, price: Decimal | None) -> Reserved:
    """The rest of an order with this quantity and price."""
    rest = max(SUMS.subtract(qty, order.filled_qty), ZERO) if order.filled_qty else qty
    if price is None:
        return Reserved(rest, ZERO)
    notional = SUMS.multiply(rest, price)
    return Reserved(rest, notional if order.multiplier is ONE else SUMS.multiply(notional, order.multiplier))


def worst_position(position: Decimal, open_qty: Decimal, side: Side, qty: Decimal) -> Decimal:
    """The position if all open orders of the side and this quantity are filled, and no order of the other side."""
    moved = SUMS.add(open_qty, qty)
    return SUMS.add(position, moved) if side == "BUY" else SUMS.subtract(position, moved)


def is_reducing(position: Decimal, open_qty: Decimal, side: Side, qty: Decimal) -> bool:
    """Whether an order can only make the position smaller: it does not cross zero in the worst case of its side."""
    if not position or (position > 0) == (side == "BUY"):
        return False
    worst = worst_position(position, open_qty, side, qty)
    return worst >= 0 if position > 0 else worst <= 0


BreachCode = Literal[
    "NOT_REDUCING",  # never shown: the order is then judged as one that is not reducing; a close is decided again
    "LIMIT_ORDERS_PER_WINDOW",
    "LIMIT_DAILY_LOSS",
    "LIMIT_OPEN_ORDERS",
    "LIMIT_OPEN_NOTIONAL",
    "LIMIT_POSITION",
    "LIMIT_GROSS_EXPOSURE",
]


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one account and symbol; none: no limit. Money is in the settlement currency of the order."""

    open_orders: int | None = None
    """Open orders of the account."""
    symbol_open_orders: int | None = None
    """Open orders of the account in the symbol."""
    open_notional: Decimal | None = None
    """What the account's open orders reserve."""
    symbol_open_notional: Decimal | None = None
    position: Decimal | None = None
    """The position in the symbol, long or short, in the worst case."""
    gross_exposure: Decimal | None = None
    """The account's positions at their cost plus what its open orders reserve, without reducing ones."""
    symbol_gross_exposure: Decimal | None = None
    daily_loss: Decimal | None = None
    """The account's realised loss of the trading day; reached is enough."""
    window_orders: int | None = None
    """Orders of the account that were accepted within the window."""

    @property
    def needs_price(self) -> bool:
        """Whether one of the limits is on an amount of money that the order adds to."""
        amounts = (self.open_notional, self.symbol_open_notional, self.gross_exposure, self.symbol_gross_exposure)
        return any(amount is not None for amount in amounts)


NO_LIMITS: Final = Limits()

LIMITS_OF: Final[Mapping[BreachCode, tuple[str, ...]]] = {
    "LIMIT_ORDERS_PER_WINDOW": ("window_orders",),
    "LIMIT_DAILY_LOSS": ("daily_loss",),
    "LIMIT_OPEN_ORDERS": ("open_orders", "symbol_open_orders"),
    "LIMIT_OPEN_NOTIONAL": ("open_notional", "symbol_open_notional"),
    "LIMIT_POSITION": ("position",),
    "LIMIT_GROSS_EXPOSURE": ("gross_exposure", "symbol_gross_exposure"),
}
"""The limits behind each reason, in the order in which they are checked."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The limits under which a change may accept an order; the append checks them on the rows of that moment.

    An order that is taken as reducing is checked to be so, and by nothing else.
    """

    order_id: OrderId
    limits: Limits = NO_LIMITS
    day: date | None = None
    """The trading day whose realised loss counts."""
    since: OrderId | None = None
    """The lowest order id of the window."""
    whole: bool = False
    """Whether a reducing order has to leave nothing of the position in the worst case of its side."""
    before: Reserved | None = None
    """For an amend: what the order reserves before it; the limits are checked on what the amend adds."""
    was_reducing: bool = False


class Added(msgspec.Struct, frozen=True, gc=False):
    """What a claim adds to the totals of its account; an amend may add to one and take from another."""

    orders: int
    qty: Decimal
    notional: Decimal
    gross: Decimal
    """The part of the notional that counts as gross exposure: not that of a reducing order."""


def claimed_by(order: Order) -> Reserved:
    """What an order reserves that claims room."""
    held = reserved(order)
    assert held is not None, "an order that claims room is open"
    return held


def added_by(claim: Claim, order: Order, held: Reserved) -> Added:
    """What the claim of this order adds, which reserves `held` from now on."""
    before = claim.before
    gross = ZERO if order.reducing else held.notional
    if before is None:
        return Added(1, held.qty, held.notional, gross)
    gross_before = ZERO if claim.was_reducing else before.notional
    return Added(
        0,
        SUMS.subtract(held.qty, before.qty),
        SUMS.subtract(held.notional, before.notional),
        SUMS.subtract(gross, gross_before),
    )


class Breach(msgspec.Struct, frozen=True):
    """The limit that rejected a claim: what it allows, and what would have been reached."""

    reason: BreachCode
    reached: Decimal
    allowed: Decimal
    of_symbol: bool = False
    """Whether it is the limit of the account in the symbol, and not of the whole account."""


def described(
    breach: Breach, account: str, symbol: str, currency: str | None, window_seconds: float, setting: str
) -> str:
    """The breach as a sentence for the answer and the journal; `setting` is the one that has the limit."""
    reached, allowed = plain(breach.reached), plain(breach.allowed)
    owner = f"{account} in {symbol}" if breach.of_symbol else account
    money = f" {currency}" if currency else ""
    match breach.reason:
        case "LIMIT_ORDERS_PER_WINDOW":
            text = f"account {owner} would have placed {reached} orders in {window_seconds:g} s, allowed are {allowed}"
        case "LIMIT_DAILY_LOSS":
            text = f"account {owner} has realised a loss of {reached}{money} today, the limit is {allowed}{money}"
        case "LIMIT_OPEN_ORDERS":
            text = f"account {owner} would have {reached} open orders, allowed are {allowed}"
        case "LIMIT_OPEN_NOTIONAL":
            text = f"the open orders of account {owner} would reserve {reached}{money}, allowed are {allowed}{money}"
        case "LIMIT_POSITION":
            text = f"the position of account {owner} could become {reached}, allowed are {allowed}"
        case "LIMIT_GROSS_EXPOSURE":
            text = f"the gross exposure of account {owner} would be {reached}{money}, allowed are {allowed}{money}"
        case "NOT_REDUCING":
            raise AssertionError("an order that is not reducing is judged by its limits")
        case unreachable:
            assert_never(unreachable)
    return f"{text} ({setting})"


class TradingDay(msgspec.Struct, frozen=True):
    """Names trading days.

    With a roll time before noon, the day begins at that time; from noon on, the day that begins then is named after the
    next calendar day, as FX desks do it at 17:00 in New York.
    """

    zone: tzinfo
    roll: time

    def of(self, at: datetime) -> date:
        """The trading day of a time. Wall time decides, so that a day is an hour shorter or longer at a time change."""
        local = at.astimezone(self.zone)
        day = local.date()
        has_rolled = local.time() >= self.roll
        if self.roll.hour < 12:
            return day if has_rolled else day - timedelta(days=1)
        return day + timedelta(days=1) if has_rolled else day

    def end_of(self, at: datetime) -> datetime:
        """When the trading day of a time ends: the next roll time after it, in UTC.

        A roll time that a time change skips is taken at the offset before the change; one that comes twice counts once.
        """
        day = at.astimezone(self.zone).date()
        while True:
            end = datetime.combine(day, self.roll, self.zone).astimezone(UTC)
            if end > at:
                return end
            day += timedelta(days=1)


UTC_DAY: Final = TradingDay(UTC, time(0))
"""The calendar day in UTC, which is the default."""


# Accepted orders of an account that are counted for its window; no setting allows more.
WINDOW_ORDERS_MAX = 10_000
# Orders from before the window are removed when they are more than the others, and more than these.
_OLD_MIN = 16

RecentOrders = Callable[[OrderId], Iterable[OrderId]]
"""The accepted orders of the account from an id on, at most the last `WINDOW_ORDERS_MAX`."""


class OrderWindow:
    """The ids of accepted orders, sorted: they begin with their time."""

    __slots__ = ("_ids", "_read", "_since")

    def __init__(self, read: RecentOrders, since: OrderId) -> None:
        self._read = read
        self._since = since
        """All accepted orders from this id on are known, or the last `WINDOW_ORDERS_MAX` of them."""
        self._ids = sorted(read(since))

    def add(self, order_id: OrderId) -> None:
        """Count a new order; one that is counted already changes nothing."""
        ids = self._ids
        if not ids or order_id > ids[-1]:
            ids.append(order_id)
        elif ids[bisect_left(ids, order_id)] != order_id:
            insort(ids, order_id)

    def count(self, since: OrderId) -> int:
        """The orders from an id on."""
        if since < self._since:  # another process, or another clock, asks for an earlier beginning
            self._ids = sorted({*self._ids, *self._read(since)})
            self._since = since
        old = bisect_left(self._ids, since)
        count = len(self._ids) - old
        if old > max(count, _OLD_MIN) or count > WINDOW_ORDERS_MAX:
            self._forget(since)
        return min(count, WINDOW_ORDERS_MAX)

    def _forget(self, since: OrderId) -> None:
        del self._ids[: max(bisect_left(self._ids, since), len(self._ids) - WINDOW_ORDERS_MAX)]
        self._since = since


CONTENT: Final = "risk.content"
"""The key store's operation of claimed contents."""


def content_digest(order: OrderRequest) -> str:
    """The digest of what the order trades; labels have no part in it, the strategy has."""
    return order_digest(msgspec.structs.replace(order, client_order_id=None, tags=()))


_Pair = tuple[AccountId, str]


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each setting, named like it; `settings/risk.py` describes them."""

    max_open_orders: int | None = None
    max_open_orders_by_account: Mapping[AccountId, int] = {}
    max_open_orders_by_account_symbol: Mapping[_Pair, int] = {}
    max_open_notional: Decimal | None = None
    max_open_notional_by_account: Mapping[AccountId, Decimal] = {}
    max_open_notional_by_account_symbol: Mapping[_Pair, Decimal] = {}
    max_position: Decimal | None = None
    max_position_by_account: Mapping[AccountId, Decimal] = {}
    max_position_by_account_symbol: Mapping[_Pair, Decimal] = {}
    max_gross_exposure: Decimal | None = None
    max_gross_exposure_by_account: Mapping[AccountId, Decimal] = {}
    max_gross_exposure_by_account_symbol: Mapping[_Pair, Decimal] = {}
    max_daily_loss: Decimal | None = None
    max_daily_loss_by_account: Mapping[AccountId, Decimal] = {}
    max_orders_per_window: int | None = None
    max_orders_per_window_by_account: Mapping[AccountId, int] = {}
    orders_window: timedelta = timedelta(seconds=1)
    trading_day_zone: tzinfo = ZoneInfo("UTC")
    trading_day_roll: time = time(0)

    @property
    def trading_day(self) -> TradingDay:
        """The trading day of a time."""
        return TradingDay(self.trading_day_zone, self.trading_day_roll)

    def limits_of(self, account: AccountId, symbol: str) -> Limits:
        """The limits of an account in a symbol: the account's own go before the global ones.

        A limit of the account and symbol is one more limit; on a position, the stricter of the two counts.
        """
        pair = (account, symbol)
        positions = [
            limit
            for limit in (
                self.max_position_by_account.get(account, self.max_position),
                self.max_position_by_account_symbol.get(pair),
            )
            if limit is not None
        ]
        limits = Limits(
            open_orders=self.max_open_orders_by_account.get(account, self.max_open_orders),
            symbol_open_orders=self.max_open_orders_by_account_symbol.get(pair),
            open_notional=self.max_open_notional_by_account.get(account, self.max_open_notional),
            symbol_open_notional=self.max_open_notional_by_account_symbol.get(pair),
            position=min(positions, default=None),
            gross_exposure=self.max_gross_exposure_by_account.get(account, self.max_gross_exposure),
            symbol_gross_exposure=self.max_gross_exposure_by_account_symbol.get(pair),
            daily_loss=self.max_daily_loss_by_account.get(account, self.max_daily_loss),
            window_orders=self.max_orders_per_window_by_account.get(account, self.max_orders_per_window),
        )
        return NO_LIMITS if limits == NO_LIMITS else limits

    def setting_of(self, breach: Breach, account: AccountId, symbol: str) -> str:
        """The name of the setting that has the limit which was breached."""
        field = f"max_{breach.reason.removeprefix('LIMIT_').lower()}"
        by_pair: Mapping[_Pair, object] = getattr(self, f"{field}_by_account_symbol", {})
        if breach.of_symbol and by_pair.get((account, symbol)) == breach.allowed:
            field += "_by_account_symbol"
        elif account in getattr(self, f"{field}_by_account"):
            field += "_by_account"
        return f"RISK_{field.upper()}"

    def symbols(self) -> frozenset[str]:
        """Every symbol that a limit names."""
        pairs = (
            *self.max_open_orders_by_account_symbol,
            *self.max_open_notional_by_account_symbol,
            *self.max_position_by_account_symbol,
            *self.max_gross_exposure_by_account_symbol,
        )
        return frozenset(symbol for _, symbol in pairs)
