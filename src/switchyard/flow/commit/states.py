"""The states of live orders and positions in memory, as this process last committed or read them.

Reads the journal for what is missing; writes nothing. It only saves reads: every decision on a state from here is
checked by the versions in its commit, and a conflict removes the state.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from msgspec.structs import replace

from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import SETTLED, OrderState
from switchyard.ports.journal import Journal

# A state takes about 2 KB. The orders that are being sent and filled are far fewer; resting orders need not be here.
ORDERS_MAX = 20_000
POSITIONS_MAX = 20_000


class OrderStateCache:
    """Bounded; the state that was used longest ago leaves first, and that of an ended order at once."""

    def __init__(self, journal: Journal, orders_max: int = ORDERS_MAX, positions_max: int = POSITIONS_MAX) -> None:
        self._journal = journal
        self._orders_max = orders_max
        self._positions_max = positions_max
        self.orders: dict[OrderId, OrderState] = {}
        """Written here only, as `positions`."""
        self._ids: dict[VenueClientOrderId, OrderId] = {}
        self.positions: dict[PositionKey, Position | None] = {}
        """None for a position that never had a fill; absent if that is not known."""
        self._is_used = False
        """Whether a stage has asked: a gateway without a worker keeps nothing."""

    def order(self, order_id: OrderId) -> OrderState | None:
        """The order's state; none where it is not in memory."""
        return self.orders.get(order_id)

    async def load(self, order_ids: Collection[OrderId]) -> frozenset[OrderId]:
        """Bring the orders into memory; returns those that had to be read."""
        self._is_used = True
        missing = [order_id for order_id in dict.fromkeys(order_ids) if order_id not in self.orders]
        if missing:
            self.remember((await self._journal.load(missing)).values())
        return frozenset(missing)

    async def load_by_client_order_id(
        self, ids: Collection[VenueClientOrderId]
    ) -> dict[VenueClientOrderId, OrderState]:
        """The orders with these client order ids, those that exist."""
        found = {client_id: self.orders[self._ids[client_id]] for client_id in ids if client_id in self._ids}
        missing = [client_id for client_id in ids if client_id not in found]
        if missing:
            loaded = await self._journal.load_by_client_order_id(missing)
            self.remember(loaded.values())
            found.update(loaded)
        return found

    async def load_positions(self, keys: Collection[PositionKey]) -> None:
        """Bring the positions into memory."""
        missing = [key for key in dict.fromkeys(keys) if key not in self.positions]
        if not missing:
            return
        loaded = await self._journal.load_positions(missing)
        for key in missing:
            known, position = self.positions.get(key), loaded.get(key)
            if position is not None and (known is None or known.version < position.version):
                self._keep_position(key, position)
            elif key not in self.positions:
                self._keep_position(key, None)

    def remember(self, states: Iterable[OrderState]) -> None:
        """Keep states that were read, except where a later version is known."""
        for state in states:
            known = self.orders.get(state.order.order_id)
            if known is None or known.order.version < state.order.version:
                self._keep(state)

    def note_committed(self, change: Change, committed: Committed) -> None:
        """Keep the states after a committed change of rows that its caller had read."""
        if not self._is_used:
            return
        for position in change.positions:
            self._keep_position(position.key, position)
        for base, order in change.order_updates:
            before = self.orders.get(order.order_id)
            if not base:
                self.note(accepted_state(order, change, committed))
            elif before is None or before.order.version != base:
                self._forget(order.order_id)
            else:
                self.note(after(before, order, change))

    def note(self, state: OrderState) -> None:
        """Keep a state that was just committed; forget that of an order that has ended."""
        if state.order.status in FINAL:
            for row in state.outbox:
                if row.status not in SETTLED:
                    break
            else:
                self._forget(state.order.order_id)
                return
        self._keep(state)

    def note_all(self, states: Mapping[OrderId, OrderState], positions: Mapping[PositionKey, Position]) -> None:
        """Keep states and positions that were just committed."""
        for state in states.values():
            self.note(state)
        for key, position in positions.items():
            self._keep_position(key, position)

    def forget(self, change: Change) -> None:
        """Remove what a change was about: it conflicted, or its outcome is not known.

        A state that is newer than the one on which the change was decided stays: it is why the change conflicted. If it
        were removed, callers that keep changing one order would keep every stage from deciding on it.
        """
        for base, order in change.order_updates:
            known = self.orders.get(order.order_id)
            if known is not None and known.order.version <= base:
                self._forget(order.order_id)
        for position in change.positions:
            self.positions.pop(position.key, None)

    def forget_order(self, order_id: OrderId) -> None:
        """Remove an order, so that the next decision on it reads it."""
        self._forget(order_id)

    def _keep(self, state: OrderState) -> None:
        order = state.order
        self.orders.pop(order.order_id, None)  # the dictionary's order is the order of use
        self.orders[order.order_id] = state
        self._ids[order.venue_client_order_id] = order.order_id
        if len(state.outbox) > 1:
            self._ids.update((row.venue_client_order_id, order.order_id) for row in state.outbox if row.kind == "amend")
        if len(self.orders) > self._orders_max:
            for oldest in list(islice(self.orders, self._orders_max // 10)):
                self._forget(oldest)

    def _forget(self, order_id: OrderId) -> None:
        state = self.orders.pop(order_id, None)
        if state is not None:
            del self._ids[state.order.venue_client_order_id]
            for row in state.outbox:
                if row.kind == "amend":
                    self._ids.pop(row.venue_client_order_id, None)

    def _keep_position(self, key: PositionKey, position: Position | None) -> None:
        self.positions.pop(key, None)
        self.positions[key] = position
        if len(self.positions) > self._positions_max:
            for oldest in list(islice(self.positions, self._positions_max // 10)):
                del self.positions[oldest]


def after(state: OrderState, order: Order, change: Change) -> OrderState:
    """The state with the order and the outbox rows that a change gives it."""
    if not change.outbox:
        return OrderState(order=order, outbox=state.outbox)
    if len(change.outbox) == len(state.outbox) == 1 and change.outbox[0].kind == state.outbox[0].kind == "new":
        return OrderState(order=order, outbox=change.outbox)
    changed = {row.key: row for row in change.outbox if row.order_id == order.order_id}
    kept = tuple(changed.pop(row.key, row) for row in state.outbox)
    return OrderState(order=order, outbox=(*kept, *changed.values()))


def accepted_state(order: Order, change: Change, committed: Committed) -> OrderState:
    """The state of an order that a committed change has created; `order` is its last version there."""
    return OrderState(
        order=order,
        outbox=tuple(
            [
                replace(row, seq=committed.first_seq + change.event_place(row))
                for _, row in change.outbox_updates
                if row.order_id == order.order_id
            ]
        ),
    )
