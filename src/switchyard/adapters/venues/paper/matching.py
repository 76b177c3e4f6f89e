"""The matching rules: how an order changes on arrival, on a market move, over time, on an amend and on a cancel.

Pure functions over frozen values, used by the paper exchange and by the simulator. An order contains its own schedule
(`due_at`, `fill_price`), so a restart continues where the process stopped.
"""

from datetime import datetime, timedelta
from decimal import Decimal, Inexact

import msgspec
from msgspec.structs import replace

from switchyard.domain.facts import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.instruments import Instrument
from switchyard.domain.money import AMOUNT_LIMIT, EXACT, ONE, ZERO, canonical, is_multiple
from switchyard.domain.orders import Order, Side, TimeInForce
from switchyard.domain.reports import ExecutionReport, ReportStatus
from switchyard.ports.venue import VenueFill


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one exchange that apply to every order."""

    venue: VenueName
    delay: timedelta = timedelta()
    """The delay before each report."""
    partial_steps: int = 1
    """The number of partial fills per order."""
    reject_all: bool = False


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
    step: Decimal
    """The instrument's quantity step when the order arrived; later catalogue changes do not apply."""
    fills_left: int
    """The number of partial fills still to come."""
    status: ReportStatus = "WORKING"
    filled_qty: Decimal = ZERO
    fill_price: Decimal | None = None
    """Set when the order is matched. A due order without it expires."""
    due_at: datetime | None = None
    """The time of the next report; None while the order rests and after it has ended."""
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
        """Whether the order waits for the market to reach its limit price."""
        return self.due_at is None and self.is_open


def rejection(order: Order, instrument: Instrument, rules: Rules) -> str | None:
    """The reason for which the exchange rejects this order, or None."""
    if rules.reject_all:
        return "REJECTED_BY_VENUE"
    if order.type not in ("LIMIT", "MARKET"):
        return "UNSUPPORTED_TYPE"
    if (order.price is None) != (order.type == "MARKET"):
        return "INVALID_PRICE"
    return amount_rejection(order.qty, order.price, instrument)


def amount_rejection(qty: Decimal, price: Decimal | None, instrument: Instrument) -> str | None:
    """The reason for which these amounts are invalid, or None."""
    if not _is_tradable(qty, instrument.step):
        return "INVALID_QTY"
    if price is not None and not _is_tradable(price, instrument.tick):
        return "INVALID_PRICE"
    return None


def _is_tradable(amount: Decimal, step: Decimal) -> bool:
    """Whether it is a positive amount in whole steps; no step has more decimals than an amount may have."""
    try:
        return amount.is_finite() and ZERO < amount < AMOUNT_LIMIT and is_multiple(amount, step)
    except Inexact:  # more digits than the context has, so no multiple of a step
        return False


def arrived(
    order: Order, number: int, venue_order_id: str, instrument: Instrument, quote: Quote, now: datetime, rules: Rules
) -> PaperOrder:
    """The accepted order: matched, about to expire, or resting."""
    market_price = quote.ask if order.side == "BUY" else quote.bid
    limit_price = None if order.price is None else canonical(order.price)
    marketable = limit_price is None or is_marketable(order.side, limit_price, quote)
    # DAY orders rest like GTC orders: the simulated market never closes.
    expires = not marketable and order.time_in_force in ("IOC", "FOK")
    qty = canonical(order.qty)
    return PaperOrder(
        number=number,
        venue_order_id=venue_order_id,
        client_id=order.venue_client_order_id,
        symbol=order.symbol,
        side=order.side,
        time_in_force=order.time_in_force,
        qty=qty,
        limit_price=limit_price,
        step=instrument.step,
        fills_left=1 if rules.partial_steps == 1 else min(rules.partial_steps, _units(qty, instrument.step)),
        fill_price=market_price if marketable else None,
        due_at=now + rules.delay if marketable or expires else None,
    )


def is_marketable(side: Side, limit_price: Decimal, quote: Quote) -> bool:
    """Whether the quote can fill an order with this limit price."""
    return limit_price >= quote.ask if side == "BUY" else limit_price <= quote.bid


def matched(order: PaperOrder, now: datetime, rules: Rules) -> PaperOrder:
    """A resting order that became marketable; it fills at its limit price."""
    return replace(order, fill_price=order.limit_price, due_at=now + rules.delay)


def advanced(order: PaperOrder, now: datetime, rules: Rules) -> tuple[PaperOrder, list[ExecutionReport]]:
    """The order after every report that is due by now, and those reports."""
    reports = []
    while order.due_at is not None and order.due_at <= now:
        next_due_at = order.due_at + rules.delay
        if order.fill_price is None:
            order, report = _ended(order, "EXPIRED", f"{order.time_in_force}_NOT_FILLED", now, rules)
        else:
            order, report = _filled(order, next_due_at, now, rules)
        reports.append(report)
    return order, reports


def amend_rejection(order: PaperOrder, qty: Decimal, limit_price: Decimal | None, instrument: Instrument) -> str | None:
    """The reason for which an open order cannot have these amounts, or None."""
    if qty <= order.filled_qty:
        return "QTY_FILLED"
    if limit_price is None or order.limit_price is None:
        return "INVALID_PRICE"  # a market order does not rest
    return amount_rejection(qty, limit_price, instrument)


def amended(
    order: PaperOrder,
    qty: Decimal,
    limit_price: Decimal,
    quote: Quote,
    now: datetime,
    rules: Rules,
    amend_id: VenueClientOrderId | None = None,
) -> PaperOrder:
    """An open order with a new quantity or price, matched immediately if it is now marketable."""
    assert order.is_open and qty > order.filled_qty
    changed = replace(order, qty=canonical(qty), limit_price=canonical(limit_price), amended_by=amend_id)
    parts = min(max(rules.partial_steps, 1), _units(EXACT.subtract(qty, order.filled_qty), order.step))
    if order.due_at is not None or not is_marketable(order.side, limit_price, quote):
        return replace(changed, fills_left=parts)
    market_price = quote.ask if order.side == "BUY" else quote.bid
    return replace(changed, fills_left=parts, fill_price=market_price, due_at=now + rules.delay)


def canceled(order: PaperOrder, now: datetime, rules: Rules) -> tuple[PaperOrder, ExecutionReport]:
    """The order after a cancel of its remainder, and the report."""
    assert order.is_open
    return _ended(order, "CANCELED", "CANCELED_BY_REQUEST", now, rules)


def _filled(
    order: PaperOrder, next_due_at: datetime, now: datetime, rules: Rules
) -> tuple[PaperOrder, ExecutionReport]:
    assert order.fills_left > 0 and order.fill_price is not None
    is_last = order.fills_left == 1
    # Most orders are filled at once.
    remaining = EXACT.subtract(order.qty, order.filled_qty) if order.filled_qty else order.qty
    qty = remaining if is_last else _slice(remaining, order.step, order.fills_left)
    report_count = order.report_count + 1
    fill = VenueFill(exec_id=_exec_id(order, report_count), qty=qty, price=order.fill_price, at=now)
    after = replace(
        order,
        status="FILLED" if is_last else "PARTIALLY_FILLED",
        filled_qty=order.qty if is_last else canonical(EXACT.add(order.filled_qty, qty)),
        fills_left=order.fills_left - 1,
        due_at=None if is_last else next_due_at,
        report_count=report_count,
        fills=(*order.fills, fill),
    )
    return after, _report(after, fill.exec_id, now, rules, last_qty=qty, last_price=order.fill_price)


def _ended(
    order: PaperOrder, status: ReportStatus, reason: str, now: datetime, rules: Rules
) -> tuple[PaperOrder, ExecutionReport]:
    after = replace(order, status=status, due_at=None, report_count=order.report_count + 1)
    return after, _report(after, _exec_id(after, after.report_count), now, rules, reason=reason)


def _report(
    order: PaperOrder,
    exec_id: str,
    now: datetime,
    rules: Rules,
    last_qty: Decimal = ZERO,
    last_price: Decimal | None = None,
    reason: str | None = None,
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
        at=now,
    )


def _exec_id(order: PaperOrder, report_number: int) -> str:
    return f"{order.venue_order_id}-{report_number}"


def _units(qty: Decimal, step: Decimal) -> int:
    return int(qty if step == ONE else EXACT.divide(qty, step))


def _slice(remaining: Decimal, step: Decimal, parts: int) -> Decimal:
    """An equal part in whole steps; earlier parts get the remainder of the division, so no part is zero."""
    share = -(-_units(remaining, step) // parts)
    return canonical(EXACT.multiply(Decimal(share), step))
