"""Queries over the in-memory journal's rows: plain scans, for tests with few rows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId, OrderId, VenueName, last_generation
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKey, OutboxKind, OutboxRow
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.outbox import DOUBTS_MAX, Due, KnownState, OutboxCount, QueueHead, nothing_known
from switchyard.ports.queries import OrderFilter
from tests.support.memory.journal import MemoryJournal

# Of an order that its venue has and that has not ended.
_OPEN: frozenset[Status] = frozenset({"WORKING", "PARTIALLY_FILLED", "CANCEL_REQUESTED"})
_UNFINISHED = ("queued", "failed", "sending", "uncertain")


class MemoryQueries:
    """ports.queries.Queries, ports.outbox.OutboxQueries and ports.outbox.OutboxListing in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def order(self, order_id: OrderId) -> Order | None:
        """Return one order."""
        return self._journal.orders.get(order_id)

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """Return a page of an account's orders, newest first."""
        matching = [order for order in self._journal.orders.values() if _matches(order, wanted)]
        matching.sort(key=lambda order: order.order_id, reverse=True)
        return matching[: min(wanted.limit, PAGE_MAX)]

    async def last_events(
        self,
        *,
        account_id: AccountId | None = None,
        order_id: OrderId | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int,
    ) -> list[JournalEvent]:
        """Return the last events of an order or of an account, in journal order."""
        events = [
            event
            for event in self._events_of(account_id, order_id)
            if event.seq > after and (before is None or event.seq < before)
        ]
        return events[max(len(events) - min(limit, PAGE_MAX), 0) :]

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """Return the next events of an order or of an account after `seq`."""
        events = [event for event in self._events_of(account_id, order_id) if event.seq > seq]
        return events[: min(limit, PAGE_MAX)]

    async def first_seq_at(self, at: datetime) -> int:
        """Return a number above every event before that time and not above any event at or after it."""
        return max((event.seq for event in self._journal.events.get(0, []) if event.at < at), default=0) + 1

    async def positions(self, account_id: AccountId, *, after: str = ACCOUNT_TOTAL, limit: int) -> list[Position]:
        """Return a page of an account's positions, flat ones included, sorted by the bytes of their symbols."""
        positions = self._journal.positions.values()
        matching = [position for position in positions if position.account_id == account_id and position.symbol > after]
        return sorted(matching, key=lambda position: position.symbol)[: min(limit, PAGE_MAX)]

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """Return a page of the orders that are open at a venue, sorted by id."""
        matching = [
            order
            for order in self._journal.orders.values()
            if order.venue == venue and order.status in _OPEN and order.order_id > (after or "")
        ]
        return sorted(matching, key=lambda order: order.order_id)[: min(limit, PAGE_MAX)]

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> Mapping[str, Execution]:
        """Return those of the execution ids that were recorded."""
        executions = [self._journal.executions.get((venue, exec_id)) for exec_id in exec_ids]
        return {execution.exec_id: execution for execution in executions if execution is not None}

    async def matched_strays(self, venue: VenueName, *, after: str = "", limit: int) -> list[Execution]:
        """Return a page of the strays whose order exists now."""
        journal = self._journal
        ids = {order.venue_client_order_id for order in journal.orders.values()}
        ids |= {row.venue_client_order_id for row in journal.outbox.values() if row.kind == "amend"}
        waiting = [
            order.venue_client_order_id
            for order in journal.orders.values()
            if order.status in ("ACCEPTED", "UNKNOWN", "CANCEL_REQUESTED")
        ]
        matching = [
            execution
            for execution in journal.executions.values()
            if execution.venue == venue
            and execution.exec_id > after
            and (stray := execution.stray_client_order_id) is not None
            and (stray in ids or any(own < stray <= last_generation(own) for own in waiting))
        ]
        return sorted(matching, key=lambda execution: execution.exec_id)[: min(limit, PAGE_MAX)]

    async def due(
        self,
        now: datetime,
        limit: int,
        venues: Sequence[VenueName] | None = None,
        lanes: Sequence[int] | None = None,
        *,
        kind: OutboxKind | None = None,
        after: int = 0,
        without: Sequence[AccountId] = (),
        known: KnownState = nothing_known,
    ) -> list[Due]:
        """Return rows to send now, in journal order; a cancel only after its order was sent."""
        due = [
            row
            for row in self._rows("queued", "failed")
            if (not row.attempt or row.next_attempt_at <= now)
            and row.seq > after
            and (venues is None or row.venue in venues)
            and (lanes is None or row.lane in lanes)
            and (kind is None or row.kind == kind)
            and self._journal.orders[row.order_id].account_id not in without
            and (row.kind == "new" or self._journal.outbox[row.order_id, "new", 1].status == "sent")
        ]
        page = [self._with_state(row) for row in due[: min(limit, PAGE_MAX)]]
        return [_as_known(due, known(due.row.order_id)) for due in page]

    async def never_sent(
        self, venues: Sequence[VenueName], lanes: Sequence[int] | None, limit: int, *, after: int = 0
    ) -> list[Due]:
        """Return the waiting orders of these venues of which no byte was sent, in journal order, due or not."""
        found = [
            row
            for row in self._rows("queued", "failed")
            if row.kind == "new" and not row.bytes_sent and row.venue in venues and row.seq > after
            if lanes is None or row.lane in lanes
        ]
        return [self._with_state(row) for row in found[: min(limit, PAGE_MAX)]]

    async def unsettled(
        self,
        status: Literal["sending", "uncertain"],
        limit: int,
        *,
        venue: VenueName | None = None,
        after: OutboxKey | None = None,
    ) -> list[Due]:
        """Return rows whose attempt has no outcome yet or an ambiguous one, sorted by their keys."""
        rows = sorted(self._rows(status), key=lambda row: row.key)
        matching = [row for row in rows if (venue is None or row.venue == venue) and (after is None or row.key > after)]
        return [self._with_state(row) for row in matching[: min(limit, PAGE_MAX)]]

    async def oldest_unsent(
        self, venues: Sequence[VenueName], without: Sequence[AccountId] = ()
    ) -> Mapping[VenueName, QueueHead]:
        """Return, for each venue with a queue, the first order in journal order without an attempt."""
        oldest: dict[VenueName, QueueHead] = {}
        for row in self._rows("queued"):
            is_left_out = self._journal.orders[row.order_id].account_id in without if without else False
            if row.kind == "new" and not row.attempt and row.venue in venues and not is_left_out:
                oldest.setdefault(row.venue, QueueHead(row.seq, row.created_at))
        return oldest

    async def accepted_since(self, seq: int) -> int:
        """Return how many orders were accepted after this event."""
        events = self._journal.events.get(0, [])
        return sum(event.seq > seq and event.type == "OrderAccepted" for event in events)

    async def unsettled_since(self, status: Literal["sending", "uncertain"], times: Sequence[datetime]) -> list[int]:
        """Return, for each time, how many rows have had this status since then or longer."""
        return [sum(row.updated_at <= time for row in self._rows(status)) for time in times]

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Return the number of unfinished rows by status."""
        by_status = {status: self._rows(status) for status in _UNFINISHED}
        return [
            OutboxCount(status, len(rows), min(row.created_at for row in rows))
            for status, rows in by_status.items()
            if rows
        ]

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Return rows of one status, oldest first."""
        return self._rows(status)[: min(limit, PAGE_MAX)]

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """Return the rows of one order, sorted by their keys."""
        rows = [row for row in self._journal.outbox.values() if row.order_id == order_id]
        return sorted(rows, key=lambda row: row.key)

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """Return one order with its first events."""
        order = await self.order(order_id)
        return None if order is None else (order, await self.events_after(0, order_id=order_id, limit=limit))

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """Return the last `OrderUncertain` events of one order, newest first."""
        doubts = [event for event in self._events_of(None, order_id) if event.type == "OrderUncertain"]
        return doubts[::-1][:DOUBTS_MAX]

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """Return the texts of cursors, and the machine's time."""
        found = {name: self._journal.cursors[name].hash for name in names if name in self._journal.cursors}
        return found, SystemClock().now()

    def _events_of(self, account_id: AccountId | None, order_id: OrderId | None) -> list[JournalEvent]:
        assert (account_id is None) != (order_id is None), "give an account or an order"
        matching = [
            event
            for events in self._journal.events.values()
            for event in events
            if (event.account_id == account_id if order_id is None else event.order_id == order_id)
        ]
        return sorted(matching, key=lambda event: event.seq)

    def _rows(self, *statuses: str) -> list[OutboxRow]:
        rows = [row for row in self._journal.outbox.values() if row.status in statuses]
        return sorted(rows, key=lambda row: (row.seq, row.kind != "new", row.number))

    def _with_state(self, row: OutboxRow) -> Due:
        state = self._journal.state(row.order_id)
        return Due(row, state, self._journal.is_reported(state.order.venue_client_order_id))


def _as_known(due: Due, state: OrderState | None) -> Due:
    if state is None or state.version_of(due.row.kind, due.row.number) != due.row.version:
        return due
    return Due(state.row(due.row.kind, due.row.number), state, due.reported_before)


def _matches(order: Order, wanted: OrderFilter) -> bool:
    return (
        order.account_id == wanted.account_id
        and (not wanted.statuses or order.status in wanted.statuses)
        and (wanted.symbol is None or order.symbol == wanted.symbol)
        and (wanted.side is None or order.side == wanted.side)
        and (wanted.strategy is None or order.strategy == wanted.strategy)
        and (wanted.client_order_id is None or order.client_order_id == wanted.client_order_id)
        and (wanted.before is None or order.order_id < wanted.before)
    )
