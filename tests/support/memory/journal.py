"""An in-memory journal for tests: all that the journal port promises except durability."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import get_args

import msgspec

from switchyard.adapters.system_clock import random_installation
from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.ids import (
    AccountId,
    Installation,
    KillId,
    OrderId,
    VenueClientOrderId,
    VenueName,
    last_generation,
)
from switchyard.domain.journal.changes import Change, Committed, Conflict, Cursor, Execution, Outcome, check_kills_alone
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import GENESIS, AuditLine, head_text, link, stamp
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.domain.risk.exposure import AccountExposure, Book, CurrencyReserve, SymbolExposure, is_unaccepted
from switchyard.domain.risk.kills import Kill, KillOrder, active_twin, covering
from switchyard.ports.journal import EPOCH_GAP, PAGE_MAX, Epoch, Head, Lines
from tests.support.memory.group_checks import check_rows_differ, check_storable


class MemoryJournal:
    """ports.journal.Journal and ports.journal.Epochs in dictionaries, which tests may read and change."""

    history = ""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.events: dict[int, list[JournalEvent]] = {}
        """By shard, in the order of their numbers."""
        self.orders: dict[OrderId, Order] = {}
        self.outbox: dict[tuple[OrderId, OutboxKind, int], OutboxRow] = {}
        self.keys: dict[tuple[AccountId, str, str], KeyEntry] = {}
        self.positions: dict[PositionKey, Position] = {}
        self.executions: dict[tuple[VenueName, str], Execution] = {}
        self.cursors: dict[str, Cursor] = {}
        self.kills: dict[KillId, Kill] = {}
        self.kill_orders: set[KillOrder] = set()
        self._by_client_id: dict[VenueClientOrderId, OrderId] = {}
        self._groups: dict[str, list[Outcome]] = {}
        self._installation = random_installation()
        self._epochs = [Epoch(epoch, 1, 0)]
        self._seen: dict[int, Head] = {}

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """Return the orders that exist, each with all of its outbox rows."""
        return {order_id: self.state(order_id) for order_id in order_ids if order_id in self.orders}

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """Return the orders with these venue client order ids, each with all of its outbox rows."""
        known = [client_id for client_id in ids if client_id in self._by_client_id]  # also ids of amends
        return {client_id: self.state(self._by_client_id[client_id]) for client_id in known}

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Return the positions that exist."""
        return {key: self.positions[key] for key in keys if key in self.positions}

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Write a group and return an outcome for each change; a repeated group returns the first outcomes."""
        check_kills_alone(changes)
        self._check_history(shard)
        if group_id in self._groups:
            return list(self._groups[group_id])
        # All changes are checked before one is written, as on the real engines.
        conflicts = self._breached(changes, [self._conflict(change) for change in changes])
        accepted = [change for change, conflict in zip(changes, conflicts, strict=True) if conflict is None]
        if not accepted:
            return [conflict for conflict in conflicts if conflict is not None]
        check_rows_differ(accepted)
        check_storable(accepted)
        outcomes = [
            Committed(self._write(shard, change, now)) if conflict is None else conflict
            for change, conflict in zip(changes, conflicts, strict=True)
        ]
        self._groups[group_id] = outcomes
        self._seen[shard] = self._head(shard)
        return list(outcomes)

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """Return the next events in order, at most PAGE_MAX."""
        return self._page(shard, after_seq, limit)

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """Return the next events as lines; None if there are none."""
        page = self._page(shard, after_seq, limit)
        if not page:
            return None
        text = "".join([f"{event.line}\n" for event in page]).encode()
        last = msgspec.json.decode(page[-1].line, type=AuditLine)
        return Lines(text, len(page), Head(last.epoch, last.seq, last.hash))

    async def head(self, shard: int) -> Head:
        """Return the last event's place."""
        head = self._head(shard)
        self._seen.setdefault(shard, head)
        return head

    async def last_event(self, shard: int, up_to_seq: int) -> Head:
        """Return the place of the last event with a number up to this one."""
        events = [event for event in self.events.get(shard, []) if event.seq <= up_to_seq]
        if not events:
            return Head(1, 0, GENESIS)
        line = msgspec.json.decode(events[-1].line, type=AuditLine)
        return Head(line.epoch, line.seq, line.hash)

    async def epochs(self, shard: int) -> list[Epoch]:
        """Return all epochs, the oldest first."""
        return list(self._epochs)

    async def confirm(self) -> None:
        """Do nothing: there is no standby."""

    def seen(self, shard: int) -> Head | None:
        """Return the head after the last append, or at the first call of `head`."""
        return self._seen.get(shard)

    async def installation(self) -> Installation:
        """Return the identity that was made with the journal."""
        return self._installation

    async def cursor(self, name: str) -> Cursor | None:
        """Return the stored position of a reader."""
        return self.cursors.get(name)

    async def open_epoch(self, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None = None) -> Head:
        """Start an epoch above both numbers and above all of the journal."""
        cursors = [cursor for cursor in self.cursors.values() if cursor.epoch > 0]
        last = self._head(0)
        self.epoch = max([self.epoch, above_epoch, *(cursor.epoch for cursor in cursors)]) + 1
        seq = max([last.seq, above_seq, *(cursor.seq for cursor in cursors)]) + EPOCH_GAP
        self._epochs.append(Epoch(self.epoch, seq + 1, last.seq))
        if marker is not None:
            self.cursors[marker.name] = msgspec.structs.replace(marker, epoch=self.epoch, seq=seq)
        self._seen[0] = self._head(0)
        return self._seen[0]

    def set_identity(self, epoch: int, epochs: Sequence[Epoch], installation_id: str | None, tag: str | None) -> None:
        """Set the identity that a rebuild found."""
        self.epoch = epoch
        self._epochs = list(epochs)
        own = self._installation
        self._installation = Installation(installation_id or own.id, tag or own.tag)
        self._seen.clear()

    def state(self, order_id: OrderId) -> OrderState:
        """Return an order that exists with all of its outbox rows, the order's own row first."""
        rows = [row for kind in get_args(OutboxKind) for row in self._rows_of(order_id, kind)]
        return OrderState(order=self.orders[order_id], outbox=tuple(rows))

    def store_rows(self, change: Change) -> None:
        """Write a change's rows without checks and without its events; `append` and a rebuild use it."""
        for order in change.orders:
            self.orders[order.order_id] = order
            self._by_client_id[order.venue_client_order_id] = order.order_id
        for row in change.outbox:
            self.outbox[row.order_id, row.kind, row.number] = row
            self._by_client_id[row.venue_client_order_id] = row.order_id
        for entry in change.keys:
            self.keys[entry.account_id, entry.operation, entry.idempotency_key] = entry
        for result in change.results:
            key = (result.account_id, result.operation, result.idempotency_key)
            ended = result.written_to(self.keys.get(key))
            if ended is not None:
                self.keys[key] = ended
        for position in change.positions:
            self.positions[position.key] = position
        for execution in change.executions:
            self.executions[execution.venue, execution.exec_id] = execution
        for cursor in change.cursors:
            self.cursors[cursor.name] = cursor
        for kill in change.kills:
            self.kills[kill.kill_id] = kill
        self.kill_orders.update(change.kill_orders)

    def _numbered(self, change: Change, first_seq: int) -> Iterator[OutboxRow]:
        """The outbox rows with their journal numbers; a later version keeps the number of the first."""
        for base, row in change.outbox_updates:
            seq = self.outbox[row.key].seq if base else first_seq + change.event_place(row)
            yield msgspec.structs.replace(row, seq=seq)

    def _head(self, shard: int) -> Head:
        events = self.events.get(shard)
        last = self._epochs[-1]
        seq, digest = (events[-1].seq, events[-1].hash) if events else (0, GENESIS)
        return Head(self.epoch, max(seq, last.first_seq - 1), digest)

    def _page(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        events = self.events.get(shard, [])
        start = bisect_right(events, after_seq, key=lambda event: event.seq)
        return events[start : start + min(limit, PAGE_MAX)]

    def _check_history(self, shard: int) -> None:
        """Raise HistoryMismatch if the events that the last append saw are gone."""
        seen, head = self._seen.get(shard), self._head(shard)
        if seen is None or seen == head:
            return
        before = self.events.get(shard, [])
        before = before[: bisect_right(before, seen.seq, key=lambda event: event.seq)]
        if head.epoch != seen.epoch or (before[-1].hash if before else GENESIS) != seen.hash:
            raise HistoryMismatch(f"the journal is at {head}, and does not have {seen}, which was seen last")

    def _rows_of(self, order_id: OrderId, kind: OutboxKind) -> Iterator[OutboxRow]:
        for number in count(1):
            row = self.outbox.get((order_id, kind, number))
            if row is None:
                return
            yield row

    def _conflict(self, change: Change) -> Conflict | None:
        for entry in change.keys:
            earlier = self.keys.get((entry.account_id, entry.operation, entry.idempotency_key))
            if entry.version != (1 if earlier is None else earlier.version + 1):
                return Conflict(earlier)
        leaving = [self.orders[order_id] for order_id in change.rerouted_ids() if order_id in self.orders]
        for order in (*change.orders_to_place(), *leaving):
            kill = covering(self.kills.values(), order)
            if kill is not None:
                return Conflict(kill=kill)
        for new in change.kills:
            if (twin := active_twin(self.kills.values(), new)) is not None:
                return Conflict(kill=twin)
        if any(self._is_early(row) for row in change.unqueued_rows()):
            return Conflict()
        is_stale = (
            any(_version(self.kills.get(kill.kill_id)) != kill.version - 1 for kill in change.kills)
            or any(_version(self.orders.get(order.order_id)) != base for base, order in change.order_updates)
            or any(
                not base and order.venue_client_order_id in self._by_client_id for base, order in change.order_updates
            )
            or any(_version(self.outbox.get(row.key)) != base for base, row in change.outbox_updates)
            or any(_version(self.positions.get(row.key)) != base for base, row in change.position_updates)
            or any(
                not execution.may_replace(
                    self.executions.get((execution.venue, execution.exec_id)), self._client_ids(execution)
                )
                for execution in change.executions
            )
        )
        return Conflict() if is_stale else None

    def _breached(self, changes: Sequence[Change], conflicts: list[Conflict | None]) -> list[Conflict | None]:
        """The conflicts with those of claims that would breach a limit, judged in order."""
        if not any(change.claims for change in changes):
            return conflicts
        book = self.book()
        judged = list(conflicts)
        for number, change in enumerate(changes):
            if change.claims and conflicts[number] is None and (breach := book.reserve(change)) is not None:
                judged[number] = Conflict(breach=breach)
        return judged

    def book(self) -> Book:
        """The totals of the rows, made anew for each call."""
        return Book(self.orders.values(), self.positions.values(), self._recent)

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        """Return an account in one symbol."""
        return self.book().symbol(account, symbol)

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        """Return what the limits of an account look at."""
        return self.book().copy_of(account, since)

    async def reserved(self) -> Mapping[str, CurrencyReserve]:
        """Return what the open orders of all accounts reserve."""
        return self.book().reserved()

    def _recent(self, account: AccountId, since: OrderId) -> list[OrderId]:
        return sorted(
            order.order_id
            for order in self.orders.values()
            if order.account_id == account and order.order_id >= since and not is_unaccepted(order)
        )

    def _is_early(self, row: OutboxRow) -> bool:
        """Whether others of the row's lane wait, or a venue has reported on its order before."""
        has_queue = any(
            other.lane == row.lane and other.kind == "new" and other.status in ("queued", "failed")
            for other in self.outbox.values()
        )
        return has_queue or self.is_reported(row.venue_client_order_id)

    def is_reported(self, client_id: VenueClientOrderId) -> bool:
        """Return whether a report without an order names the id, or a later generation of its key."""
        last = last_generation(client_id)
        strays = (execution.stray_client_order_id for execution in self.executions.values())
        return any(stray is not None and client_id <= stray <= last for stray in strays)

    def _client_ids(self, execution: Execution) -> set[VenueClientOrderId]:
        """The ids of the execution's order and of its amends."""
        order = self.orders.get(execution.order_id)
        if order is None:
            return set()
        amends = (row for row in self.outbox.values() if row.order_id == order.order_id and row.kind == "amend")
        return {order.venue_client_order_id, *(row.venue_client_order_id for row in amends)}

    def _write(self, shard: int, change: Change, now: datetime) -> int:
        """Write a change and return the seq of its first event, 0 without events."""
        events = self.events.setdefault(shard, [])
        first_seq = self._head(shard).seq + 1
        kills = tuple(
            msgspec.structs.replace(kill, seq=first_seq if kill.version == 1 else self.kills[kill.kill_id].seq)
            for kill in change.kills
        )
        covered = tuple(
            KillOrder(kill.kill_id, order.order_id)
            for kill in kills
            for order in self.orders.values()
            if kill.version == 1 and not is_final(order.status) and kill.covers(order)
        )
        numbered = tuple(self._numbered(change, first_seq))
        self.store_rows(msgspec.structs.replace(change, outbox=numbered, kills=kills, kill_orders=covered))
        if not change.events:
            return 0
        at = max(now.astimezone(UTC), events[-1].at) if events else now.astimezone(UTC)
        for seq, event in enumerate(change.events, first_seq):
            text = head_text(self.epoch, shard, seq, stamp(at)) + event.tail
            digest = link(events[-1].hash if events else GENESIS, text)
            events.append(JournalEvent(seq, at, event.type, event.account_id, event.order_id, text, digest))
        return first_seq


def _version(row: Order | OutboxRow | Position | Kill | None) -> int:
    return 0 if row is None else row.version
