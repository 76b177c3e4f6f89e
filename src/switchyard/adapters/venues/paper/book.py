"""The order book of the paper exchange, and its newest reports."""

import asyncio
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from switchyard.adapters.venues.paper.matching import PaperOrder, is_marketable
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.quotes import is_triggered
from switchyard.domain.orders.order import Side
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.ports.venue import ReportPage, VenueUnavailable

# Entries of orders that have changed since; beyond as many as there are open orders, and these, the queue is rebuilt.
STALE_ENTRIES_MAX = 1_000

Reaches = Callable[[Side, Decimal, Quote], bool]
"""Whether a quote reaches a price of an order of this side."""


class Ladder:
    """Resting orders of one symbol and side by price; at equal prices, in order of arrival."""

    def __init__(self, side: Side, reaches: Reaches, *, highest_first: bool) -> None:
        self._side: Side = side
        self._reaches = reaches
        self._highest_first = highest_first
        self._prices: list[Decimal] = []
        self._levels: dict[Decimal, dict[VenueClientOrderId, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._prices)

    def add(self, price: Decimal, client_id: VenueClientOrderId) -> None:
        """Add an order at its price."""
        level = self._levels.get(price)
        if level is None:
            insort(self._prices, price)
            level = self._levels[price] = {}
        level[client_id] = None

    def remove(self, price: Decimal, client_id: VenueClientOrderId) -> None:
        """Remove an order, and its price level when it was the last order there."""
        level = self._levels[price]
        del level[client_id]
        if not level:
            del self._levels[price]
            del self._prices[bisect_left(self._prices, price)]

    def reached(self, quote: Quote) -> Iterator[VenueClientOrderId]:
        """The orders whose price the quote reaches, those that it reaches first before the others."""
        for price in reversed(self._prices) if self._highest_first else self._prices:
            if not self._reaches(self._side, price, quote):
                return
            yield from self._levels[price]


class Ladders:
    """The resting orders of one symbol: by limit price, and stop orders by stop price."""

    def __init__(self) -> None:
        self.limits: dict[Side, Ladder] = {
            "BUY": Ladder("BUY", is_marketable, highest_first=True),
            "SELL": Ladder("SELL", is_marketable, highest_first=False),
        }
        self.stops: dict[Side, Ladder] = {
            "BUY": Ladder("BUY", is_triggered, highest_first=False),
            "SELL": Ladder("SELL", is_triggered, highest_first=True),
        }

    def __bool__(self) -> bool:
        return any(self.limits.values()) or any(self.stops.values())

    def place_of(self, order: PaperOrder) -> tuple[Ladder, Decimal]:
        """The ladder and the price at which the order rests."""
        if order.is_waiting:
            assert order.stop_price is not None
            return self.stops[order.side], order.stop_price
        return self.limits[order.side], order.rest_price


class Book:
    """Every open order, and the highest order and report numbers."""

    def __init__(self, last_order: int, last_report: int, open_orders: Iterable[PaperOrder] = ()) -> None:
        self.last_order = last_order
        self.last_report = last_report
        self._orders: dict[VenueClientOrderId, PaperOrder] = {}
        self._ladders: OrderedDict[str, Ladders] = OrderedDict()
        # An entry becomes stale when its order changes; `take_due` skips it.
        self._due: list[tuple[datetime, int, VenueClientOrderId]] = []
        for order in open_orders:
            self._put(order)

    @property
    def open_count(self) -> int:
        """The number of open orders."""
        return len(self._orders)

    def find(self, client_id: VenueClientOrderId) -> PaperOrder | None:
        """Return the order if it is open."""
        return self._orders.get(client_id)

    def apply(self, orders: Iterable[PaperOrder], report_count: int) -> None:
        """Apply committed changes."""
        for order in orders:
            self._put(order)
        self.last_report += report_count

    def next_due_at(self) -> datetime | None:
        """The earliest due time in the queue; its entry may be stale."""
        return self._due[0][0] if self._due else None

    def take_due(self, now: datetime, limit: int) -> list[PaperOrder]:
        """Remove and return the orders whose next report is due."""
        due: dict[VenueClientOrderId, PaperOrder] = {}
        while self._due and self._due[0][0] <= now and len(due) < limit:
            due_at, _, client_id = heappop(self._due)
            order = self._orders.get(client_id)
            if order is not None and order.changes_at == due_at:
                due[client_id] = order
        return list(due.values())

    def take_symbols(self, limit: int) -> list[str]:
        """Return symbols with resting orders in round-robin order, so that a bounded step reaches each in time."""
        symbols = list(islice(self._ladders, limit))
        for symbol in symbols:
            self._ladders.move_to_end(symbol)
        return symbols

    def marketable(self, quotes: Mapping[str, Quote], limit: int) -> list[PaperOrder]:
        """Resting orders that the quotes can fill."""
        return self._reached(quotes, lambda ladders: ladders.limits, limit)

    def triggered(self, quotes: Mapping[str, Quote], limit: int) -> list[PaperOrder]:
        """Stop orders that the quotes trigger."""
        return self._reached(quotes, lambda ladders: ladders.stops, limit)

    def _reached(
        self, quotes: Mapping[str, Quote], sides_of: Callable[[Ladders], dict[Side, Ladder]], limit: int
    ) -> list[PaperOrder]:
        client_ids = chain.from_iterable(
            ladder.reached(quote)
            for symbol, quote in quotes.items()
            if (ladders := self._ladders.get(symbol)) is not None  # none where its last order has just ended
            for ladder in sides_of(ladders).values()
        )
        return [self._orders[client_id] for client_id in islice(client_ids, limit)]

    def _put(self, order: PaperOrder) -> None:
        before = self._orders.get(order.client_id)
        if before is not None and before.is_resting:
            self._unrest(before)
        self.last_order = max(self.last_order, order.number)
        if not order.is_open:
            self._orders.pop(order.client_id, None)
            return
        self._orders[order.client_id] = order
        if order.due_at is None:
            self._rest(order)
        changes_at = order.changes_at
        if changes_at is not None:
            heappush(self._due, (changes_at, order.number, order.client_id))
            if len(self._due) > 2 * len(self._orders) + STALE_ENTRIES_MAX:
                self._rebuild_due()

    def _rebuild_due(self) -> None:
        """Drop stale entries: those of DAY orders that have ended would stay until the end of the session."""
        self._due = [
            (order.changes_at, order.number, order.client_id)
            for order in self._orders.values()
            if order.changes_at is not None
        ]
        heapify(self._due)

    def _rest(self, order: PaperOrder) -> None:
        ladders = self._ladders.get(order.symbol)
        if ladders is None:
            ladders = self._ladders[order.symbol] = Ladders()
        ladder, price = ladders.place_of(order)
        ladder.add(price, order.client_id)

    def _unrest(self, order: PaperOrder) -> None:
        ladders = self._ladders[order.symbol]
        ladder, price = ladders.place_of(order)
        ladder.remove(price, order.client_id)
        if not ladders:
            del self._ladders[order.symbol]


# Long enough to keep polling of an idle venue rare, short enough that a reader can stop promptly.
WAIT_SECONDS = 0.5


class RecentReports:
    """The last `kept_max` reports of a sequence numbered from 1 without gaps."""

    def __init__(self, kept_max: int, last_number: int = 0) -> None:
        self._kept_max = kept_max
        self._reports: list[ExecutionReport] = []
        self._last_number = last_number
        self._readers: set[asyncio.Future[None]] = set()

    def publish(self, reports: Sequence[ExecutionReport], last_number: int) -> None:
        """Append reports, of which the last has number `last_number`, and wake waiting readers."""
        if last_number == self._last_number:
            return
        if last_number - len(reports) != self._last_number:
            # A commit succeeded but its result was lost, so some reports are missing here: keep only the newer ones.
            self._reports.clear()
        self._reports += reports
        if len(self._reports) > 2 * self._kept_max:  # rarely, because it moves every report that is kept
            del self._reports[: -self._kept_max]
        self._last_number = last_number
        self.wake()

    def wake(self) -> None:
        """Wake all waiting readers."""
        for reader in self._readers:
            _wake(reader)

    async def wait(self, after: int) -> None:
        """Return when there may be a report after this number, or after WAIT_SECONDS."""
        if self._cursor(after) != self._last_number:
            return
        loop = asyncio.get_running_loop()
        reader = loop.create_future()
        timer = loop.call_later(WAIT_SECONDS, _wake, reader)
        self._readers.add(reader)
        try:
            await reader
        finally:
            self._readers.discard(reader)
            timer.cancel()

    def page(self, after: int, limit: int) -> ReportPage | None:
        """Return the reports after this number, or None if they are no longer in memory."""
        cursor = self._cursor(after)
        if cursor == self._last_number:
            return ReportPage((), cursor_text(after))
        unread = self._last_number - cursor
        if unread > min(len(self._reports), self._kept_max):
            return None
        start = len(self._reports) - unread
        reports = self._reports[start : start + limit]
        return ReportPage(reports, cursor_text(cursor + len(reports)), restarted=after > self._last_number)

    def unread(self, after: int) -> range:
        """The numbers of all reports after this one."""
        return range(self._cursor(after) + 1, self._last_number + 1)

    def _cursor(self, after: int) -> int:
        # A cursor ahead of the last number belongs to a lost sequence: such a reader starts again at 1.
        return after if after <= self._last_number else 0


def number_of(cursor: str | None) -> int:
    """The number of the last report or line that was read; raises VenueUnavailable."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
        raise VenueUnavailable(f"{cursor!r} is no cursor of this venue")
    return int(cursor or 0)


def cursor_text(number: int) -> str | None:
    """The cursor after the report or line with this number."""
    return str(number) if number else None


def _wake(reader: "asyncio.Future[None]") -> None:
    if not reader.done():
        reader.set_result(None)
