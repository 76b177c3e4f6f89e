"""The simulated broker: takes orders on, recognises ids as told, and fills against the paper market."""

import asyncio
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from typing import assert_never

from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.market import STEP, Market
from switchyard.adapters.venues.paper.matching import (
    PaperOrder,
    Rules,
    advanced,
    amended,
    amount_rejection,
    arrived,
    canceled,
    matched,
    rejection,
)
from switchyard.adapters.venues.simulator.faults import FaultPlan
from switchyard.adapters.venues.simulator.log import Entry, EventLog
from switchyard.adapters.venues.simulator.orders import (
    HeldOrder,
    amend_entry,
    as_order,
    execution_entry,
    order_entry,
    report_of,
    state_after,
)
from switchyard.adapters.venues.simulator.reporting import Reporting
from switchyard.adapters.venues.wire import PlaceOrder, Report, Statement, StatementLine
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueName, ulid
from switchyard.domain.instruments import Catalogue
from switchyard.domain.reports import ExecutionReport
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Dedupe

# Some 2 KB of memory each; a run that needs more wants another log.
ORDERS_MAX = 1_000_000
# How many symbols with resting orders are compared with the market in one step of its walk, and how many fill.
SYMBOLS_PER_STEP_MAX = 256
FILLS_PER_STEP_MAX = 1_000


class Conflict(Exception):
    """The order is not taken on; `reason` is for the one who sent it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Broker:
    """Every order that was taken on, in memory; what happens is in the log before anyone is told of it."""

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
    ) -> None:
        self._log = log
        self._reporting = reporting
        self._plan = plan
        self._clock = clock
        self._dedupe = dedupe
        self._dedupe_ttl_seconds = dedupe_ttl_seconds
        self._catalogue = Catalogue()
        self._market = Market(self._catalogue, seed)
        self._book = Book(0, 0)
        # Every start has a prefix of its own, so that not even a lost log leads to an id that was used before.
        self._prefix = f"brk-{ulid(int(clock.now().timestamp() * 1000), 0)[:10]}"
        self._orders: dict[str, HeldOrder] = {}
        """By the venue's id, in the order of acceptance."""
        self._latest: dict[str, HeldOrder] = {}
        """By client order id; of several orders under one id, the latest."""
        self._statement: list[StatementLine] = []

    def restore(self, entries: Iterable[Entry]) -> None:
        """Continue from the log."""
        executions: dict[str, Report] = {}
        told: list[Report] = []
        told_ids: set[str] = set()
        for entry in entries:
            match entry.event:
                case "order":
                    assert entry.order is not None
                    self._hold(HeldOrder(entry.client_order_id, entry.at, entry.order))
                case "amend":
                    assert entry.order is not None
                    self._orders[entry.venue_order_id].state = entry.order
                case "report":
                    assert entry.exec_id is not None
                    told.append(executions[entry.exec_id])
                    told_ids.add(entry.exec_id)
                case "drop":
                    assert entry.exec_id is not None
                    told_ids.add(entry.exec_id)
                case "fill" | "cancel" | "expire":
                    assert entry.exec_id is not None
                    held = self._orders[entry.venue_order_id]
                    held.state = state_after(held.state, entry)
                    executions[entry.exec_id] = self._book_keep(held, entry)
                case _:
                    assert_never(entry.event)
        self._book = Book(len(self._orders), 0, (held.state for held in self._orders.values() if held.state.is_open))
        self._reporting.restore(told, [report for id_, report in executions.items() if id_ not in told_ids])

    async def run(self) -> None:
        """Let the market come to resting orders for as long as the process lives."""
        while True:
            self._let_time_pass()
            await asyncio.sleep(STEP.total_seconds())

    def recognised(self, client_order_id: str) -> HeldOrder | None:
        """The order that a repeated id stands for, as far as this venue remembers ids."""
        held = self._latest.get(client_order_id)
        if held is None:
            return None
        match self._dedupe:
            case "forever":
                return held
            case "open_only":
                return held if held.state.is_open else None
            case "ttl":
                return held if self.age_seconds(held) < self._dedupe_ttl_seconds else None
            case "none":
                return None

    def take(self, message: PlaceOrder) -> HeldOrder:
        """Take an order on, whatever its id, or raise Conflict."""
        if len(self._orders) >= ORDERS_MAX:
            raise Conflict("VENUE_FULL")
        now = self._clock.now()
        number = len(self._orders) + 1
        venue_order_id = f"{self._prefix}-{number}"
        instrument = self._catalogue.find(message.symbol)
        order = as_order(message, venue_order_id, now)
        reason = rejection(order, instrument, self._rules)
        if reason is not None:
            raise Conflict(reason)
        quote = self._market.quote(message.symbol, now)
        state = arrived(order, number, venue_order_id, instrument, quote, now, self._rules)
        held = HeldOrder(message.client_order_id, now, state)
        self._hold(held)
        self._log.append(order_entry(held, message))
        self._advance(held, state)
        return held

    def cancel(self, client_order_id: str) -> HeldOrder | None:
        """Drop what is left of an order; none when there is no such order."""
        held = self._latest.get(client_order_id)
        if held is not None and held.state.is_open:
            state, report = canceled(held.state, self._clock.now(), self._rules)
            self._record(held, state, [report])
        return held

    def amend(self, held: HeldOrder, qty: Decimal | None, limit_price: Decimal | None) -> None:
        """Change an open order, or raise Conflict."""
        state = held.state
        qty, limit_price = qty or state.qty, limit_price or state.limit_price
        if qty <= state.filled_qty:
            raise Conflict("QTY_FILLED")
        if limit_price is None:
            raise Conflict("INVALID_PRICE")
        reason = amount_rejection(qty, limit_price, self._catalogue.find(state.symbol))
        if reason is not None:
            raise Conflict(reason)
        now = self._clock.now()
        held.state = amended(state, qty, limit_price, self._market.quote(state.symbol, now), now, self._rules)
        self._log.append(amend_entry(held, now))
        self._advance(held, held.state)

    def find(self, client_order_id: str) -> HeldOrder | None:
        """The latest order under this id."""
        return self._latest.get(client_order_id)

    def age_seconds(self, held: HeldOrder) -> float:
        """How long ago the order was taken on."""
        return (self._clock.now() - held.accepted_at).total_seconds()

    def open_orders(self, after: int, limit: int) -> list[HeldOrder]:
        """Open orders whose number is higher than this, in the order of acceptance."""
        later = islice(self._orders.values(), after, None)
        return list(islice((held for held in later if held.state.is_open), limit))

    def quote(self, symbol: str) -> Quote:
        """The market right now."""
        return self._market.quote(symbol, self._clock.now())

    def statement(self, after: int, limit: int) -> Statement:
        """Every fill once, in the order in which they happened."""
        fills = tuple(self._statement[after : after + limit])
        return Statement(fills=fills, last_number=after + len(fills))

    @property
    def _rules(self) -> Rules:
        return Rules(venue=VenueName("sim"), partial_steps=max(1, self._plan.faults.partial_fills))

    def _let_time_pass(self) -> None:
        now = self._clock.now()
        symbols = self._book.take_symbols(SYMBOLS_PER_STEP_MAX)
        quotes = {symbol: self._market.quote(symbol, now) for symbol in symbols}
        # Only a crash between an order's line and its fills leaves an order due.
        for state in self._book.take_due(now, FILLS_PER_STEP_MAX):
            self._advance(self._orders[state.venue_order_id], state)
        for state in self._book.reached(quotes, FILLS_PER_STEP_MAX):
            self._advance(self._orders[state.venue_order_id], matched(state, now, self._rules))

    def _hold(self, held: HeldOrder) -> None:
        self._orders[held.state.venue_order_id] = held
        self._latest[held.client_order_id] = held

    def _advance(self, held: HeldOrder, state: PaperOrder) -> None:
        self._record(held, *advanced(state, self._clock.now(), self._rules))

    def _record(self, held: HeldOrder, state: PaperOrder, reports: Iterable[ExecutionReport]) -> None:
        held.state = state
        self._book.apply([state], 0)
        for report in reports:
            entry = execution_entry(held, report)
            self._log.append(entry)
            self._reporting.report(self._book_keep(held, entry))

    def _book_keep(self, held: HeldOrder, entry: Entry) -> Report:
        report = report_of(entry)
        if entry.event == "fill":
            self._statement.append(_statement_line(held, report))
        return report


def _statement_line(held: HeldOrder, report: Report) -> StatementLine:
    assert report.last_price is not None
    return StatementLine(
        exec_id=report.exec_id,
        client_order_id=report.client_order_id,
        broker_order_id=report.broker_order_id,
        symbol=held.state.symbol,
        intent=held.state.side,
        qty=report.last_qty,
        price=report.last_price,
        at=report.at,
    )
