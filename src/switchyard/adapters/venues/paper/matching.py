"""Matches an order of the paper exchange with the market: rules, displayed quantity, rejections."""

from datetime import datetime, timedelta
from decimal import Decimal, Inexact

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.order import LIMITED, RESTING, STOPS, Order, Side, TimeInForce
from switchyard.domain.orders.reports import ExecType, ExecutionReport, ReportStatus
from switchyard.domain.risk.claims import UTC_DAY, TradingDay
from switchyard.domain.values import AMOUNT_LIMIT, EXACT, ONE, ZERO, canonical, is_multiple
from switchyard.ports.venue import VenueFill


class Displayed:
    """What is left of the displayed quantities in the present market step. Without a quantity, any order is filled.

    It is not stored: a restart begins a step anew.
    """

    def __init__(self, qty: Decimal | None = None) -> None:
        self._qty = qty
        self._step = -1
        self._taken: dict[tuple[str, Side], Decimal] = {}

    def begin(self, step: int, qty: Decimal | None) -> None:
        """Go on to a market step; with a new one, each side displays the quantity again."""
        if step != self._step or qty != self._qty:
            self._step, self._qty = step, qty
            self._taken.clear()

    def take(self, symbol: str, side: Side, wanted: Decimal, step: Decimal, *, whole: bool = False) -> Decimal:
        """Take up to the wanted quantity for an order of this side, in whole steps; with `whole` all of it or nothing.

        Returns what was taken.
        """
        if self._qty is None:
            return wanted
        taken = self._taken.get((symbol, side), ZERO)
        left = EXACT.subtract(self._qty, taken)
        left = EXACT.subtract(left, EXACT.remainder(left, step))
        if left < wanted and (whole or left <= 0):
            return ZERO
        qty = min(left, wanted)
        self._taken[symbol, side] = EXACT.add(taken, qty)
        return qty


ANY_QTY = Displayed()
"""A market that displays enough for every order."""


# An order keeps its fills in its row. One that has so many is filled whole, however little is displayed.
FILLS_MAX = 1_000


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one exchange that apply to every order."""

    venue: VenueName
    delay: timedelta = timedelta()
    """The delay before each report."""
    partial_steps: int = 1
    """The number of partial fills per order."""
    reject_all: bool = False
    session: TradingDay = UTC_DAY
    """The trading day at whose end DAY orders expire."""


class PaperOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order in the exchange's book."""

    number: int
    venue_order_id: str
    client_id: VenueClientOrderId
    symbol: str
    side: Side
    time_in_force: TimeInForce
    qty: Decimal
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    triggered: bool = False
    """Whether the market has reached the stop price; the order is then a MARKET or a LIMIT order."""
    expires_at: datetime | None = None
    """The end of a DAY order's session, or of a GTD order. A fill that is due then or later does not happen."""
    post_only: bool = False
    step: Decimal
    """The instrument's quantity step when the order arrived; later catalogue changes do not apply."""
    fills_left: int
    """The number of partial fills still to come of the quantity that is matched."""
    match_qty: Decimal | None = None
    """What is matched and not yet filled; None: all the rest, or nothing while the order rests."""
    status: ReportStatus = "WORKING"
    filled_qty: Decimal = ZERO
    fill_price: Decimal | None = None
    """Set while the order is matched. A due order without it expires."""
    due_at: datetime | None = None
    """The time of the next fill, or of the end of an IOC or FOK order; None while the order rests and after its end."""
    report_count: int = 0
    fills: tuple[VenueFill, ...] = ()
    amended_by: VenueClientOrderId | None = None
    """The client order id of the last amend that was carried out."""

    @property
    def is_open(self) -> bool:
        """Whether the order can still be filled, cancelled or expire."""
        return self.status in ("WORKING", "PARTIALLY_FILLED")

    @property
    def is_resting(self) -> bool:
        """Whether the order waits for the market to reach its limit price or its stop price."""
        return self.due_at is None and self.is_open

    @property
    def is_waiting(self) -> bool:
        """Whether it is a stop order that the market has not triggered yet."""
        return self.stop_price is not None and not self.triggered

    @property
    def rest_price(self) -> Decimal:
        """The price at which the order rests; the rest of a MARKET order takes any price."""
        if self.limit_price is not None:
            return self.limit_price
        return AMOUNT_LIMIT if self.side == "BUY" else ZERO

    @property
    def changes_at(self) -> datetime | None:
        """When time alone changes the order: the next fill, or its expiry; None if never."""
        if self.expires_at is None or not self.is_open:
            return self.due_at
        return self.expires_at if self.due_at is None else min(self.due_at, self.expires_at)


def arrived(
    order: Order,
    number: int,
    venue_order_id: str,
    instrument: Instrument,
    quote: Quote | None,
    now: datetime,
    rules: Rules,
    displayed: Displayed = ANY_QTY,
) -> PaperOrder:
    """The accepted order: matched, about to expire, resting, or waiting for its stop price (see `triggered`).

    Without a market nothing is matched.
    """
    limit_price = None if order.price is None else canonical(order.price)
    qty = canonical(order.qty)
    matched_qty = ZERO
    if quote is not None and order.stop_price is None and is_marketable(order.side, limit_price, quote):
        whole = order.time_in_force == "FOK"
        matched_qty = displayed.take(order.symbol, order.side, qty, instrument.step, whole=whole)
    is_due = bool(matched_qty) or order.time_in_force not in RESTING
    return PaperOrder(
        number=number,
        venue_order_id=venue_order_id,
        client_id=order.venue_client_order_id,
        symbol=order.symbol,
        side=order.side,
        time_in_force=order.time_in_force,
        qty=qty,
        limit_price=limit_price,
        stop_price=None if order.stop_price is None else canonical(order.stop_price),
        expires_at=rules.session.end_of(order.accepted_at) if order.time_in_force == "DAY" else order.expires_at,
        post_only=order.post_only,
        step=instrument.step,
        fills_left=_parts(matched_qty, instrument.step, order.time_in_force, rules),
        match_qty=None if matched_qty == qty or not matched_qty else matched_qty,
        fill_price=market_price(order.side, quote) if quote is not None and matched_qty else None,
        due_at=now + rules.delay if is_due else None,
    )


def market_price(side: Side, quote: Quote) -> Decimal:
    """The price that an order of this side gets from the quote."""
    return quote.ask if side == "BUY" else quote.bid


def is_marketable(side: Side, limit_price: Decimal | None, quote: Quote) -> bool:
    """Whether the quote can fill an order with this limit price; a MARKET order has none."""
    if limit_price is None:
        return True
    return limit_price >= quote.ask if side == "BUY" else limit_price <= quote.bid


def triggered(
    order: PaperOrder, quote: Quote, now: datetime, rules: Rules, displayed: Displayed = ANY_QTY
) -> tuple[PaperOrder, ExecutionReport]:
    """A stop order that the market has reached, and the report of that: it is a MARKET or a LIMIT order from now on."""
    assert order.is_waiting and order.is_open
    report_count = order.report_count + 1
    live = replace(order, triggered=True, report_count=report_count)
    report = _report(live, _exec_id(live, report_count), now, rules, reason="STOP_TRIGGERED", exec_type="TRIGGERED")
    if is_marketable(live.side, live.rest_price, quote):
        live = _matched(live, market_price(live.side, quote), now, rules, displayed)
    return live, report


def matched(order: PaperOrder, quote: Quote, now: datetime, rules: Rules, displayed: Displayed = ANY_QTY) -> PaperOrder:
    """A resting order that is marketable: it fills at its limit price; the rest of a MARKET order at the market."""
    price = market_price(order.side, quote) if order.limit_price is None else order.limit_price
    return _matched(order, price, now, rules, displayed)


def _matched(order: PaperOrder, price: Decimal, now: datetime, rules: Rules, displayed: Displayed) -> PaperOrder:
    """The order with as much of it matched as is displayed; unchanged where that is nothing."""
    rest = _rest(order)
    is_bounded = len(order.fills) < FILLS_MAX
    qty = displayed.take(order.symbol, order.side, rest, order.step) if is_bounded else rest
    if not qty:
        return order
    return replace(
        order,
        fill_price=price,
        due_at=now + rules.delay,
        fills_left=_parts(qty, order.step, order.time_in_force, rules),
        match_qty=None if qty == rest else canonical(qty),
    )


def advanced(order: PaperOrder, now: datetime, rules: Rules) -> tuple[PaperOrder, list[ExecutionReport]]:
    """The order after everything that is due by now, and the reports of that."""
    reports = []
    while (at := order.changes_at) is not None and at <= now:
        if at == order.expires_at:
            order, report = _ended(order, "EXPIRED", f"{order.time_in_force}_ENDED", now, rules)
        elif order.fill_price is None:
            order, report = _ended(order, "EXPIRED", f"{order.time_in_force}_NOT_FILLED", now, rules)
        else:
            order, report = _filled(order, at + rules.delay, now, rules)
        reports.append(report)
    return order, reports


def amended(
    order: PaperOrder,
    qty: Decimal,
    limit_price: Decimal | None,
    quote: Quote | None,
    now: datetime,
    rules: Rules,
    *,
    stop_price: Decimal | None = None,
    amend_id: VenueClientOrderId | None = None,
    displayed: Displayed = ANY_QTY,
) -> PaperOrder:
    """An open order with a new quantity or prices, matched immediately if it is now marketable.

    A stop order whose new stop price the market has reached is triggered by the next market step.
    """
    assert order.is_open and qty > order.filled_qty
    changed = replace(
        order,
        qty=canonical(qty),
        limit_price=None if limit_price is None else canonical(limit_price),
        stop_price=order.stop_price if stop_price is None else canonical(stop_price),
        amended_by=amend_id,
    )
    if order.due_at is not None:
        # What is matched stays matched, as far as the new quantity reaches; all the rest if nothing else was said.
        part = None if order.match_qty is None else min(order.match_qty, _rest(changed))
        parts = _parts(_rest(changed) if part is None else part, order.step, order.time_in_force, rules)
        return replace(changed, match_qty=None if part == _rest(changed) else part, fills_left=parts)
    if quote is None or changed.is_waiting or not is_marketable(order.side, changed.rest_price, quote):
        return changed
    return _matched(changed, market_price(order.side, quote), now, rules, displayed)


def canceled(order: PaperOrder, now: datetime, rules: Rules) -> tuple[PaperOrder, ExecutionReport]:
    """The order after a cancel of its remainder, and the report."""
    assert order.is_open
    return _ended(order, "CANCELED", "CANCELED_BY_REQUEST", now, rules)


def _filled(
    order: PaperOrder, next_due_at: datetime, now: datetime, rules: Rules
) -> tuple[PaperOrder, ExecutionReport]:
    assert order.fills_left > 0 and order.fill_price is not None
    is_last = order.fills_left == 1
    matched_qty = _rest(order) if order.match_qty is None else order.match_qty
    qty = matched_qty if is_last else _slice(matched_qty, order.step, order.fills_left)
    report_count = order.report_count + 1
    fill = VenueFill(exec_id=_exec_id(order, report_count), qty=qty, price=order.fill_price, at=now)
    if is_last and order.match_qty is None:
        after = replace(
            order,
            status="FILLED",
            filled_qty=order.qty,
            fills_left=0,
            due_at=None,
            report_count=report_count,
            fills=(*order.fills, fill),
        )
    else:
        after = replace(
            order,
            status="PARTIALLY_FILLED",
            filled_qty=canonical(EXACT.add(order.filled_qty, qty)),
            fills_left=order.fills_left - 1,
            match_qty=None if is_last or order.match_qty is None else canonical(EXACT.subtract(order.match_qty, qty)),
            due_at=next_due_at,
            report_count=report_count,
            fills=(*order.fills, fill),
        )
        if is_last:  # no more is displayed: the rest of an IOC order expires with the fill, any other order rests
            rests = order.time_in_force in RESTING
            after = replace(after, fill_price=None, due_at=None if rests else order.due_at)
    return after, _report(after, fill.exec_id, now, rules, last_qty=qty, last_price=order.fill_price)


def _ended(
    order: PaperOrder, status: ReportStatus, reason: str, now: datetime, rules: Rules
) -> tuple[PaperOrder, ExecutionReport]:
    after = replace(order, status=status, due_at=None, match_qty=None, report_count=order.report_count + 1)
    return after, _report(after, _exec_id(after, after.report_count), now, rules, reason=reason)


def _report(
    order: PaperOrder,
    exec_id: str,
    now: datetime,
    rules: Rules,
    last_qty: Decimal = ZERO,
    last_price: Decimal | None = None,
    reason: str | None = None,
    exec_type: ExecType | None = None,
) -> ExecutionReport:
    return ExecutionReport(
        exec_id=exec_id,
        venue=rules.venue,
        venue_client_order_id=order.client_id,
        venue_order_id=order.venue_order_id,
        status=order.status,
        last_qty=last_qty,
        last_price=last_price,
        filled_qty_total=order.filled_qty,
        reason=reason,
        exec_type=exec_type,
        at=now,
    )


def _exec_id(order: PaperOrder, report_number: int) -> str:
    return f"{order.venue_order_id}-{report_number}"


def _rest(order: PaperOrder) -> Decimal:
    # Most orders are filled at once.
    return EXACT.subtract(order.qty, order.filled_qty) if order.filled_qty else order.qty


def _parts(qty: Decimal, step: Decimal, time_in_force: TimeInForce, rules: Rules) -> int:
    """The number of fills for a matched quantity; a FOK order has one, because a part of it must not stay alone."""
    if rules.partial_steps == 1 or time_in_force == "FOK":
        return 1
    return min(rules.partial_steps, _units(qty, step))


def _units(qty: Decimal, step: Decimal) -> int:
    return int(qty if step == ONE else EXACT.divide(qty, step))


def _slice(remaining: Decimal, step: Decimal, parts: int) -> Decimal:
    """An equal part in whole steps; earlier parts get the remainder of the division, so no part is zero."""
    share = -(-_units(remaining, step) // parts)
    return canonical(EXACT.multiply(Decimal(share), step))


def rejection(order: Order, instrument: Instrument, quote: Quote | None, rules: Rules) -> str | None:
    """The reason for which the exchange rejects this order, or None."""
    if rules.reject_all:
        return "REJECTED_BY_VENUE"
    if order.display_qty is not None or order.venue_reduce_only:
        return "UNSUPPORTED"
    if order.time_in_force == "GTD" and order.expires_at is None:
        return "INVALID_TIME_IN_FORCE"
    if (order.price is not None) != (order.type in LIMITED):
        return "INVALID_PRICE"
    if (order.stop_price is not None) != (order.type in STOPS):
        return "INVALID_STOP_PRICE"
    if order.type in STOPS and order.time_in_force not in RESTING:
        return "INVALID_TIME_IN_FORCE"
    if order.post_only and (order.type != "LIMIT" or order.time_in_force not in RESTING):
        return "INVALID_POST_ONLY"
    return amount_rejection(order.qty, order.price, instrument, order.stop_price) or _post_only_rejection(
        order.post_only, order.side, order.price, quote
    )


def _post_only_rejection(post_only: bool, side: Side, price: Decimal | None, quote: Quote | None) -> str | None:
    would_trade = post_only and price is not None and quote is not None and is_marketable(side, price, quote)
    return "POST_ONLY_WOULD_TRADE" if would_trade else None


def amount_rejection(
    qty: Decimal, price: Decimal | None, instrument: Instrument, stop_price: Decimal | None = None
) -> str | None:
    """The reason for which these amounts are invalid, or None."""
    if not _is_tradable(qty, instrument.step):
        return "INVALID_QTY"
    if price is not None and not _is_tradable(price, instrument.tick):
        return "INVALID_PRICE"
    if stop_price is not None and not _is_tradable(stop_price, instrument.tick):
        return "INVALID_STOP_PRICE"
    return None


def amend_rejection(
    order: PaperOrder,
    qty: Decimal,
    limit_price: Decimal | None,
    stop_price: Decimal | None,
    instrument: Instrument,
    quote: Quote | None,
) -> str | None:
    """The reason for which an open order cannot have these amounts, or None."""
    if qty <= order.filled_qty:
        return "QTY_FILLED"
    if (limit_price is None) != (order.limit_price is None) or (limit_price is None and not order.is_waiting):
        return "INVALID_PRICE"
    if (stop_price is None) != (order.stop_price is None):
        return "INVALID_STOP_PRICE"
    if stop_price != order.stop_price and not order.is_waiting:
        return "STOP_TRIGGERED"
    return amount_rejection(qty, limit_price, instrument, stop_price) or _post_only_rejection(
        order.post_only and order.is_resting, order.side, limit_price, quote
    )


def _is_tradable(amount: Decimal, step: Decimal) -> bool:
    """Whether it is a positive amount in whole steps; no step has more decimals than an amount may have."""
    try:
        return amount.is_finite() and ZERO < amount < AMOUNT_LIMIT and is_multiple(amount, step)
    except Inexact:  # more digits than the context has, so no multiple of a step
        return False
