"""The broker of the venue simulator: takes orders, cancels and amends, fills them, and reports."""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.market import STEP, Market, market_step
from switchyard.adapters.venues.paper.matching import (
    Displayed,
    PaperOrder,
    Rules,
    advanced,
    amend_rejection,
    amended,
    arrived,
    canceled,
    matched,
    rejection,
    triggered,
)
from switchyard.adapters.venues.simulator.log import Entry, EventLog, FaultPlan, Reporting
from switchyard.adapters.venues.simulator.orders import (
    BrokerOrder,
    amend_entry,
    execution_entry,
    matching_order,
    order_entry,
    repeat_entry,
    report_of,
    state_after,
)
from switchyard.adapters.venues.wire import AmendOrder, PlaceOrder, Report, Statement, StatementLine
from switchyard.domain.ids import VenueClientOrderId, VenueName, ulid
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.quotes import is_triggered
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.claims import UTC_DAY, TradingDay
from switchyard.domain.values import EXACT, ZERO, share
from switchyard.ports.clock import Clock
from switchyard.ports.venue import AmendMode, Dedupe

BASIS_POINTS = Decimal(10_000)


def with_fees(
    state: PaperOrder, reports: list[ExecutionReport], plan: FaultPlan, catalogue: Catalogue
) -> tuple[PaperOrder, list[ExecutionReport]]:
    """Charge a fee for each new fill, if the faults require it."""
    basis_points = plan.faults.fee_basis_points
    if not basis_points:
        return state, reports
    currency = catalogue.find(state.symbol).quote
    new = {report.exec_id for report in reports}
    fees = {
        fill.exec_id: share(EXACT.multiply(fill.qty, fill.price), Decimal(basis_points), BASIS_POINTS)
        for fill in state.fills
        if fill.exec_id in new
    }
    fills = tuple(
        replace(fill, fee=fees[fill.exec_id], fee_currency=currency) if fill.exec_id in fees else fill
        for fill in state.fills
    )
    return replace(state, fills=fills), [
        replace(report, fee=fees[report.exec_id], fee_currency=currency) if report.exec_id in fees else report
        for report in reports
    ]


def revisions(
    state: PaperOrder, report: ExecutionReport, plan: FaultPlan, catalogue: Catalogue
) -> Iterator[ExecutionReport]:
    """The reports that revise a fill, as the faults require."""
    if not report.last_qty or report.last_price is None:
        return
    referred = replace(report, ref_exec_id=report.exec_id)
    if plan.hits("correct_fills"):
        price = EXACT.add(report.last_price, catalogue.find(state.symbol).tick)
        yield replace(referred, exec_id=f"{report.exec_id}-correct", exec_type="CORRECT", last_price=price)
    if plan.hits("bust_fills"):
        yield replace(referred, exec_id=f"{report.exec_id}-bust", exec_type="CANCEL")


# An order takes about 2 KB of memory; a longer run needs a new log.
ORDERS_MAX = 1_000_000
# Symbols with resting orders that are compared with the market per market step, and orders that fill.
SYMBOLS_PER_STEP_MAX = 256
FILLS_PER_STEP_MAX = 1_000
# After `reject_after_part_fill`: longer than any test waits.
SECOND_HALF_DELAY = timedelta(hours=1)


class BrokerRejection(Exception):
    """The broker rejects an order or an amend; `reason` is the error code of the response."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Broker:
    """All accepted orders, in memory."""

    def __init__(
        self,
        *,
        log: EventLog,
        reporting: Reporting,
        plan: FaultPlan,
        clock: Clock,
        seed: int,
        dedupe: Dedupe,
        dedupe_ttl_seconds: float,
        amend: AmendMode = "in_place",
        session: TradingDay = UTC_DAY,
    ) -> None:
        self._amend = amend
        self._amended: dict[str, BrokerOrder] = {}
        """Orders that were amended in place, by the client order ids of their amends."""
        self._log = log
        self._reporting = reporting
        self._plan = plan
        self._clock = clock
        self._dedupe = dedupe
        self._dedupe_ttl_seconds = dedupe_ttl_seconds
        self._session = session
        self._displayed = Displayed()
        self._catalogue = Catalogue()
        self._market = Market(self._catalogue, seed)
        self._book = Book(0, 0)
        # Each start uses a new prefix, so that ids are not reused even if the log was lost.
        self._prefix = f"brk-{ulid(int(clock.now().timestamp() * 1000), 0)[:10]}"
        self._orders: dict[str, BrokerOrder] = {}
        """By venue order id, in the order of acceptance."""
        self._latest: dict[str, BrokerOrder] = {}
        """By client order id; the latest order if several share the id."""
        self._statement: list[StatementLine] = []
        self._positions: dict[str, Decimal] = {}
        """By symbol: all fills, above zero when long."""
        self._last_fill: tuple[str, str] | None = None
        """The venue order id and the execution id of the last fill."""

    def restore(self, entries: Iterable[Entry]) -> None:
        """Restore the state from the log."""
        # By venue order id and execution id: with `reuse_exec_ids`, two orders may share an execution id.
        executions: dict[tuple[str, str], Report] = {}
        published: list[Report] = []
        published_ids: set[tuple[str, str]] = set()
        for entry in entries:
            match entry.event:
                case "order":
                    assert entry.order is not None
                    self._add(BrokerOrder(entry.client_order_id, entry.at, entry.order, account=entry.account))
                case "amend" if entry.replaces is not None:
                    assert entry.order is not None
                    replaced = self._orders[entry.replaces]
                    replaced.replaced_by = entry.client_order_id
                    replaced.state = replace(replaced.state, status="CANCELED", due_at=None)
                    account = replaced.account
                    self._add(BrokerOrder(entry.client_order_id, entry.at, entry.order, account=account))
                case "amend":
                    assert entry.order is not None
                    self._orders[entry.venue_order_id].state = entry.order
                    self._note_amended(self._orders[entry.venue_order_id], entry.at)
                case "repeat":
                    pass
                case "report":
                    assert entry.exec_id is not None
                    published.append(executions[entry.venue_order_id, entry.exec_id])
                    published_ids.add((entry.venue_order_id, entry.exec_id))
                case "drop":
                    assert entry.exec_id is not None
                    published_ids.add((entry.venue_order_id, entry.exec_id))
                case "renumber":
                    published.clear()
                case "revise":
                    assert entry.exec_id is not None
                    order = self._orders[entry.venue_order_id]
                    executions[entry.venue_order_id, entry.exec_id] = self._add_to_statement(order, entry)
                case "trigger":
                    assert entry.order is not None and entry.exec_id is not None
                    self._orders[entry.venue_order_id].state = entry.order
                    executions[entry.venue_order_id, entry.exec_id] = report_of(entry)
                case "fill" | "cancel" | "expire":
                    assert entry.exec_id is not None
                    order = self._orders[entry.venue_order_id]
                    order.state = state_after(order.state, entry)
                    executions[entry.venue_order_id, entry.exec_id] = self._add_to_statement(order, entry)
                case _:
                    assert_never(entry.event)
        self._book = Book(len(self._orders), 0, (order.state for order in self._orders.values() if order.state.is_open))
        unpublished = [report for exec_id, report in executions.items() if exec_id not in published_ids]
        self._reporting.restore(published, unpublished)

    async def run(self) -> None:
        """Match resting orders with the market at every market step, until cancelled."""
        while True:
            self._advance_time()
            await asyncio.sleep(STEP.total_seconds())

    def recognised(self, client_order_id: str) -> BrokerOrder | None:
        """Return the order that a repeated id refers to under the configured deduplication, or None."""
        order = self._latest.get(client_order_id)
        if order is None:
            return None
        match self._dedupe:
            case "permanent":
                return order
            case "while_open":
                return order if order.state.is_open else None
            case "ttl":
                return order if self.age_seconds(order) < self._dedupe_ttl_seconds else None
            case "none":
                return None
            case _:
                assert_never(self._dedupe)

    def accept(self, message: PlaceOrder, *, only_half: bool = False) -> BrokerOrder:
        """Accept an order without deduplication; raises BrokerRejection. A marketable one is filled, or half of it."""
        if len(self._orders) >= ORDERS_MAX:
            raise BrokerRejection("VENUE_FULL")
        now = self._clock.now()
        number = len(self._orders) + 1
        venue_order_id = f"{self._prefix}-{number}"
        instrument = self._catalogue.find(message.symbol)
        incoming = matching_order(message, venue_order_id, now)
        quote = self._market.quote(message.symbol, now)
        reason = rejection(incoming, instrument, quote, self._rules)
        if reason is None and message.reduce_only is True and not self._can_reduce(message):
            reason = "REDUCE_ONLY"
        if reason is not None:
            raise BrokerRejection(reason)
        rules = replace(self._rules, partial_steps=2) if only_half else self._rules
        self._display(now)
        state = arrived(incoming, number, venue_order_id, instrument, quote, now, rules, self._displayed)
        account = None if message.account is UNSET else message.account
        order = BrokerOrder(message.client_order_id, now, state, account=account)
        self._add(order)
        self._log.append(order_entry(order, message))
        if only_half:
            self._record(order, *advanced(state, now, replace(rules, delay=SECOND_HALF_DELAY)))
        elif state.stop_price is not None and is_triggered(state.side, state.stop_price, quote):
            self._face(order, quote)
        else:
            self._advance(order, state)
        return order

    def cancel(self, client_order_id: str) -> BrokerOrder | None:
        """Cancel the remainder of an order and return the order; None if there is no such order."""
        order = self.find(client_order_id)
        if order is not None and order.state.is_open:
            state, report = canceled(order.state, self._clock.now(), self._rules)
            self._record(order, state, [report])
        return order

    def cancel_all(self) -> int:
        """Cancel the remainder of every open order; returns their number."""
        open_ids = [client_id for client_id, order in self._latest.items() if order.state.is_open]
        for client_id in open_ids:
            self.cancel(client_id)
        return len(open_ids)

    def amend(self, order: BrokerOrder, message: AmendOrder) -> BrokerOrder:
        """Change an open order, or put another one in its place; raises BrokerRejection. Returns the amended order."""
        state = order.state
        qty, limit_price = message.qty or state.qty, message.limit_price or state.limit_price
        stop_price = message.stop_price or state.stop_price
        now = self._clock.now()
        quote = self._market.quote(state.symbol, now)
        reason = amend_rejection(state, qty, limit_price, stop_price, self._catalogue.find(state.symbol), quote)
        if reason is not None:
            raise BrokerRejection(reason)
        self._display(now)
        amend_id = None if message.client_order_id is None else VenueClientOrderId(message.client_order_id)
        changed = amended(
            state,
            qty,
            limit_price,
            quote,
            now,
            self._rules,
            stop_price=stop_price,
            amend_id=amend_id,
            displayed=self._displayed,
        )
        if self._amend == "cancel_replace" and amend_id is not None:
            return self._replace(order, changed, now)
        order.state = changed
        self._note_amended(order, now)
        self._log.append(amend_entry(order, now))
        self._advance(order, order.state)
        return order

    def note_repeat(self, order: BrokerOrder) -> None:
        """Log an amend that was carried out before."""
        self._log.append(repeat_entry(order, self._clock.now()))

    def _replace(self, order: BrokerOrder, state: PaperOrder, now: datetime) -> BrokerOrder:
        """End the order and put a new one, with the fills so far, in its place."""
        number = len(self._orders) + 1
        venue_order_id = f"{self._prefix}-{number}"
        assert state.amended_by is not None
        client_id = VenueClientOrderId(venue_order_id)
        successor = BrokerOrder(
            state.amended_by,
            now,
            replace(state, number=number, venue_order_id=venue_order_id, client_id=client_id, report_count=0),
            account=order.account,
        )
        order.replaced_by = successor.client_order_id
        self._add(successor)
        self._log.append(amend_entry(successor, now, order))
        ended, report = canceled(order.state, now, self._rules)
        self._record(order, ended, [replace(report, reason="REPLACED")])
        self._advance(successor, successor.state)
        return successor

    def _note_amended(self, order: BrokerOrder, now: datetime) -> None:
        order.amended_at = now
        if order.state.amended_by is not None:
            self._amended[order.state.amended_by] = order

    def find(self, client_order_id: str) -> BrokerOrder | None:
        """Return the latest order with this client order id, or the one with an amend of this id, or None."""
        return self._latest.get(client_order_id) or self._amended.get(client_order_id)

    def age_seconds(self, order: BrokerOrder, client_order_id: str | None = None) -> float:
        """The time since the order was accepted, or since its amend with this client order id was carried out."""
        is_amend = order.amended_at is not None and client_order_id == order.state.amended_by
        since = order.amended_at if is_amend and order.amended_at is not None else order.accepted_at
        return (self._clock.now() - since).total_seconds()

    def open_orders(self, after: int, limit: int) -> list[BrokerOrder]:
        """Return open orders with a number above `after`, in the order of acceptance."""
        later = islice(self._orders.values(), after, None)
        return list(islice((order for order in later if order.state.is_open), limit))

    def quote(self, symbol: str) -> Quote:
        """The current market."""
        return self._market.quote(symbol, self._clock.now())

    def statement(self, after: int, limit: int) -> Statement:
        """Return every fill exactly once, in chronological order."""
        fills = tuple(self._statement[after : after + limit])
        return Statement(fills=fills, last_number=after + len(fills))

    @property
    def _rules(self) -> Rules:
        return Rules(
            venue=VenueName("sim"), partial_steps=max(1, self._plan.faults.partial_fills), session=self._session
        )

    def _advance_time(self) -> None:
        now = self._clock.now()
        symbols = self._book.take_symbols(SYMBOLS_PER_STEP_MAX)
        quotes = {symbol: self._market.quote(symbol, now) for symbol in symbols}
        # A DAY order expires; a fill is due here only after a crash between the order's line, or its trigger, and it.
        for state in self._book.take_due(now, FILLS_PER_STEP_MAX):
            self._advance(self._orders[state.venue_order_id], state)
        for book_orders in (self._book.marketable, self._book.triggered):
            for state in book_orders(quotes, FILLS_PER_STEP_MAX):
                self._face(self._orders[state.venue_order_id], quotes[state.symbol])

    def _face(self, order: BrokerOrder, quote: Quote) -> None:
        """Let a resting order meet a quote that reaches its price."""
        now, state = self._clock.now(), order.state
        self._display(now)
        if state.expires_at is not None and state.expires_at <= now:
            pass  # its session is over, however many orders expire before it
        elif state.is_waiting:
            state, report = triggered(state, quote, now, self._rules, self._displayed)
            self._record(order, state, [report])
        else:
            state = matched(state, quote, now, self._rules, self._displayed)
            if state is order.state:  # nothing is displayed for it any more
                return
        self._advance(order, state)

    def _display(self, now: datetime) -> None:
        qty = Decimal(self._plan.faults.displayed_qty) or None
        self._displayed.begin(market_step(now), qty)

    def _can_reduce(self, message: PlaceOrder) -> bool:
        """Whether the order only reduces the position as it is on arrival; later fills of others are not considered."""
        held = self._positions.get(message.symbol, ZERO)
        return (held > 0) == (message.intent == "SELL") and message.qty <= abs(held)

    def _add(self, order: BrokerOrder) -> None:
        self._orders[order.state.venue_order_id] = order
        self._latest[order.client_order_id] = order

    def _advance(self, order: BrokerOrder, state: PaperOrder) -> None:
        self._record(order, *advanced(state, self._clock.now(), self._rules))

    def _record(self, order: BrokerOrder, state: PaperOrder, reports: Iterable[ExecutionReport]) -> None:
        reports = list(reports)
        if any(report.last_qty for report in reports):
            state, reports = self._with_reused_id(*with_fees(state, reports, self._plan, self._catalogue))
        order.state = state
        self._book.apply([state], 0)
        revised = ((report, *revisions(state, report, self._plan, self._catalogue)) for report in reports)
        for report in chain.from_iterable(revised):
            entry = execution_entry(order, report)
            self._log.append(entry)
            self._reporting.report(self._add_to_statement(order, entry))

    def _with_reused_id(
        self, state: PaperOrder, reports: list[ExecutionReport]
    ) -> tuple[PaperOrder, list[ExecutionReport]]:
        """Rename the last fill after another order's, if the faults require it."""
        fill = state.fills[-1]
        reused, self._last_fill = self._last_fill, (state.venue_order_id, fill.exec_id)
        if reused is None or reused[0] == state.venue_order_id or not self._plan.hits("reuse_exec_ids"):
            return state, reports
        renamed = replace(state, fills=(*state.fills[:-1], replace(fill, exec_id=reused[1])))
        return renamed, [
            replace(report, exec_id=reused[1]) if report.exec_id == fill.exec_id else report for report in reports
        ]

    def _add_to_statement(self, order: BrokerOrder, entry: Entry) -> Report:
        """Return the report of the entry; a fill and a revision of one also become statement lines."""
        report = report_of(entry)
        if entry.event in ("fill", "revise"):
            self._statement.append(_statement_line(order, report))
        if entry.event == "fill":
            symbol, moved = order.state.symbol, report.last_qty if order.state.side == "BUY" else -report.last_qty
            self._positions[symbol] = EXACT.add(self._positions.get(symbol, ZERO), moved)
        return report


def _statement_line(order: BrokerOrder, report: Report) -> StatementLine:
    assert report.last_price is not None
    return StatementLine(
        exec_id=report.exec_id,
        client_order_id=report.client_order_id,
        broker_order_id=report.broker_order_id,
        symbol=order.state.symbol,
        intent=order.state.side,
        qty=report.last_qty,
        price=report.last_price,
        at=report.at,
        fee=report.fee,
        fee_currency=report.fee_currency,
        account=order.account,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )


class OffsetClock:
    """Implements `Clock`: another clock's wall time plus a constant offset."""

    def __init__(self, clock: Clock, offset: timedelta) -> None:
        self._clock = clock
        self._offset = offset

    @property
    def jumped_at(self) -> None:
        """No key is judged by this clock."""

    @property
    def stepped_ahead(self) -> timedelta:
        """No order waits by this clock."""
        return timedelta()

    def now(self) -> datetime:
        """The time in UTC, with the offset."""
        return self._clock.now() + self._offset

    def monotonic(self) -> float:
        """Seconds that never decrease."""
        return self._clock.monotonic()
