"""The paper exchange's open orders in memory, indexed by limit price, by stop price and by due time.

`Store.load` fills it from the file; it is changed only after the change is committed.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from switchyard.adapters.venues.paper.matching import PaperOrder, is_marketable
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.quotes import is_triggered
from switchyard.domain.orders.order import Side

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
