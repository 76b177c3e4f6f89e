"""The recent orders of one account in memory, for the limit on orders per window; exact wherever the window begins."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from switchyard.domain.ids import OrderId

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
