"""The open orders in memory, arranged by what can happen to them next."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from heapq import heappop, heappush
from itertools import chain, islice

from switchyard.adapters.venues.paper.matching import PaperOrder, is_reached
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders import Side


class Ladder:
    """Resting orders of one symbol and side by price; within a price the earliest first."""

    def __init__(self, side: Side) -> None:
        self._side: Side = side
        self._prices: list[Decimal] = []
        self._levels: dict[Decimal, dict[VenueClientOrderId, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._prices)

    def add(self, price: Decimal, client_id: VenueClientOrderId) -> None:
        """Rest an order at its price."""
        level = self._levels.get(price)
        if level is None:
            insort(self._prices, price)
            level = self._levels[price] = {}
        level[client_id] = None

    def remove(self, price: Decimal, client_id: VenueClientOrderId) -> None:
        """Take an order off, and its price when it was the last one there."""
        level = self._levels[price]
        del level[client_id]
        if not level:
            del self._levels[price]
            del self._prices[bisect_left(self._prices, price)]

    def reached(self, quote: Quote) -> Iterator[VenueClientOrderId]:
        """The orders whose price the market has come to, the best price first."""
        for price in reversed(self._prices) if self._side == "BUY" else self._prices:
            if not is_reached(self._side, price, quote):
                return
            yield from self._levels[price]


class Book:
    """Every open order, and how far the numbering of orders and reports has come."""

    def __init__(self, last_order: int, last_report: int, open_orders: Iterable[PaperOrder] = ()) -> None:
        self.last_order = last_order
        self.last_report = last_report
        self._orders: dict[VenueClientOrderId, PaperOrder] = {}
        self._ladders: OrderedDict[str, dict[Side, Ladder]] = OrderedDict()
        # An entry whose order has changed since is skipped when its time comes.
        self._due: list[tuple[datetime, int, VenueClientOrderId]] = []
        for order in open_orders:
            self._put(order)

    @property
    def open_count(self) -> int:
        """How many orders are open."""
        return len(self._orders)

    def find(self, client_id: VenueClientOrderId) -> PaperOrder | None:
        """The order, if it is open."""
        return self._orders.get(client_id)

    def apply(self, orders: Iterable[PaperOrder], report_count: int) -> None:
        """Take over what has become durable."""
        for order in orders:
            self._put(order)
        self.last_report += report_count

    def next_due_at(self) -> datetime | None:
        """When an order may next be due."""
        return self._due[0][0] if self._due else None

    def take_due(self, now: datetime, limit: int) -> list[PaperOrder]:
        """Orders with a report to make by now, each handed out once."""
        found: list[PaperOrder] = []
        while self._due and self._due[0][0] <= now and len(found) < limit:
            due_at, _, client_id = heappop(self._due)
            order = self._orders.get(client_id)
            if order is not None and order.due_at == due_at:
                found.append(order)
        return found

    def take_symbols(self, limit: int) -> list[str]:
        """Symbols with resting orders, in turn, so that a bounded look reaches every one of them in time."""
        symbols = list(islice(self._ladders, limit))
        for symbol in symbols:
            self._ladders.move_to_end(symbol)
        return symbols

    def reached(self, quotes: Mapping[str, Quote], limit: int) -> list[PaperOrder]:
        """Resting orders whose price the market has come to."""
        client_ids = chain.from_iterable(
            ladder.reached(quote) for symbol, quote in quotes.items() for ladder in self._ladders[symbol].values()
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
