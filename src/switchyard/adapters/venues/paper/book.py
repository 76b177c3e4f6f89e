"""The paper exchange's open orders in memory, indexed by price level and by due time.

`Store.load` fills it from the file; it is changed only after the change is committed.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from heapq import heappop, heappush
from itertools import chain, islice

from switchyard.adapters.venues.paper.matching import PaperOrder, is_marketable
from switchyard.domain.facts import Quote
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders import Side


class Ladder:
    """Resting orders of one symbol and side by price; at equal prices, in order of arrival."""

    def __init__(self, side: Side) -> None:
        self._side: Side = side
        self._prices: list[Decimal] = []
        self._levels: dict[Decimal, dict[VenueClientOrderId, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._prices)

    def add(self, price: Decimal, client_id: VenueClientOrderId) -> None:
        """Add an order at its limit price."""
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

    def marketable(self, quote: Quote) -> Iterator[VenueClientOrderId]:
        """The orders that the quote can fill, best price first."""
        for price in reversed(self._prices) if self._side == "BUY" else self._prices:
            if not is_marketable(self._side, price, quote):
                return
            yield from self._levels[price]


class Book:
    """Every open order, and the highest order and report numbers."""

    def __init__(self, last_order: int, last_report: int, open_orders: Iterable[PaperOrder] = ()) -> None:
        self.last_order = last_order
        self.last_report = last_report
        self._orders: dict[VenueClientOrderId, PaperOrder] = {}
        self._ladders: OrderedDict[str, dict[Side, Ladder]] = OrderedDict()
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
        due: list[PaperOrder] = []
        while self._due and self._due[0][0] <= now and len(due) < limit:
            due_at, _, client_id = heappop(self._due)
            order = self._orders.get(client_id)
            if order is not None and order.due_at == due_at:
                due.append(order)
        return due

    def take_symbols(self, limit: int) -> list[str]:
        """Return symbols with resting orders in round-robin order, so that a bounded step reaches each in time."""
        symbols = list(islice(self._ladders, limit))
        for symbol in symbols:
            self._ladders.move_to_end(symbol)
        return symbols

    def marketable(self, quotes: Mapping[str, Quote], limit: int) -> list[PaperOrder]:
        """Resting orders that the quotes can fill."""
        client_ids = chain.from_iterable(
            ladder.marketable(quote) for symbol, quote in quotes.items() for ladder in self._ladders[symbol].values()
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
        else:
            heappush(self._due, (order.due_at, order.number, order.client_id))

    def _rest(self, order: PaperOrder) -> None:
        assert order.limit_price is not None
        sides = self._ladders.setdefault(order.symbol, {"BUY": Ladder("BUY"), "SELL": Ladder("SELL")})
        sides[order.side].add(order.limit_price, order.client_id)

    def _unrest(self, order: PaperOrder) -> None:
        assert order.limit_price is not None
        sides = self._ladders[order.symbol]
        sides[order.side].remove(order.limit_price, order.client_id)
        if not any(sides.values()):
            del self._ladders[order.symbol]
