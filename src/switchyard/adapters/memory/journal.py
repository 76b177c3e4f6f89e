"""A journal in memory, for tests: everything the port promises but durability."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from switchyard.domain.chain import GENESIS, head_text, link, stamp
from switchyard.domain.changes import Change, Committed, Conflict, Cursor, Execution, Outcome
from switchyard.domain.events import JournalEvent
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.domain.positions import Position, PositionKey
from switchyard.ports.journal import PAGE_MAX, Head, Lines


class MemoryJournal:
    """ports.journal.Journal in dictionaries; the rows are open to a test's eyes."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.events: dict[int, list[JournalEvent]] = {}
        """By shard; an event's place in its list is its seq less one."""
        self.orders: dict[OrderId, Order] = {}
        self.outbox: dict[tuple[OrderId, OutboxKind, int], OutboxRow] = {}
        self.keys: dict[tuple[AccountId, str, str], KeyEntry] = {}
        self.positions: dict[PositionKey, Position] = {}
        self.executions: dict[tuple[VenueName, str], Execution] = {}
        self.cursors: dict[str, Cursor] = {}
        self._by_client_id: dict[VenueClientOrderId, OrderId] = {}
        self._groups: dict[str, list[Outcome]] = {}

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """The orders that exist, each with all of its outbox rows, the order's own first."""
        return {order_id: self._state(self.orders[order_id]) for order_id in order_ids if order_id in self.orders}

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """The same, found by the ids that a venue knows."""
        known = [client_id for client_id in ids if client_id in self._by_client_id]
        return {client_id: self._state(self.orders[self._by_client_id[client_id]]) for client_id in known}

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Of the named positions those that ever had a fill."""
        return {key: self.positions[key] for key in keys if key in self.positions}

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Take a group and answer for each change; the same group again is answered the same."""
        if group_id not in self._groups:
            self._groups[group_id] = [self._append(shard, change, now) for change in changes]
        return list(self._groups[group_id])

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """The next events in order, at most a page."""
        return self.events.get(shard, [])[after_seq : after_seq + min(limit, PAGE_MAX)]

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """The same as whole lines in one piece; none where there are none."""
        page = await self.read(shard, after_seq, limit)
        if not page:
            return None
        text = "".join([f"{event.line}\n" for event in page]).encode()
        return Lines(text, len(page), Head(self.epoch, page[-1].seq, page[-1].hash))

    async def head(self, shard: int) -> Head:
        """The newest place."""
        events = self.events.get(shard)
        return Head(self.epoch, events[-1].seq, events[-1].hash) if events else Head(self.epoch, 0, GENESIS)

    async def cursor(self, name: str) -> Cursor | None:
        """How far the named reader has come."""
        return self.cursors.get(name)

    def _state(self, order: Order) -> OrderState:
        rows = [row for row in self.outbox.values() if row.order_id == order.order_id]
        return OrderState(order=order, outbox=tuple(sorted(rows, key=lambda row: (row.kind != "new", row.number))))

    def _append(self, shard: int, change: Change, now: datetime) -> Outcome:
        rejected = self._rejection(change)
        if rejected is not None:
            return rejected
        first_seq = self._number(shard, change, now)
        for order in change.orders:
            self.orders[order.order_id] = order
            self._by_client_id[order.venue_client_order_id] = order.order_id
        for row in change.outbox:
            self.outbox[row.order_id, row.kind, row.number] = row
        for entry in change.keys:
            self.keys[entry.account_id, entry.operation, entry.idempotency_key] = entry
        for position in change.positions:
            self.positions[position.key] = position
        for execution in change.executions:
            self.executions[execution.venue, execution.exec_id] = execution
        for cursor in change.cursors:
            self.cursors[cursor.name] = cursor
        return Committed(first_seq)

    def _rejection(self, change: Change) -> Conflict | None:
        for entry in change.keys:
            earlier = self.keys.get((entry.account_id, entry.operation, entry.idempotency_key))
            if entry.version != (1 if earlier is None else earlier.version + 1):
                return Conflict(earlier)
        is_stale = (
            any(_version(self.orders.get(order.order_id)) != order.version - 1 for order in change.orders)
            or any(order.version == 1 and order.venue_client_order_id in self._by_client_id for order in change.orders)
            or any(
                _version(self.outbox.get((row.order_id, row.kind, row.number))) != row.version - 1
                for row in change.outbox
            )
            or any(_version(self.positions.get(row.key)) != base for base, row in change.position_moves())
            or any(
                not execution.may_replace(self.executions.get((execution.venue, execution.exec_id)))
                for execution in change.executions
            )
        )
        return Conflict() if is_stale else None

    def _number(self, shard: int, change: Change, now: datetime) -> int:
        """Give the change's events their places; returns the first number, 0 without events."""
        if not change.events:
            return 0
        events = self.events.setdefault(shard, [])
        first_seq = len(events) + 1
        at = max(now.astimezone(UTC), events[-1].at) if events else now.astimezone(UTC)
        for seq, event in enumerate(change.events, first_seq):
            text = head_text(self.epoch, shard, seq, stamp(at)) + event.tail
            digest = link(events[-1].hash if events else GENESIS, text)
            events.append(JournalEvent(seq, at, event.type, event.account_id, event.order_id, text, digest))
        return first_seq


def _version(row: Order | OutboxRow | Position | None) -> int:
    return 0 if row is None else row.version
