"""A stream hub over a journal that the test writes, and helpers that read its subscriptions."""

import asyncio
import random
from contextlib import aclosing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.journal.events import Event, JournalEvent, encode
from switchyard.domain.orders.order import OrderRequest, snapshot
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.readers.folds import Message
from switchyard.flow.readers.stream import StreamHub, Subscription
from switchyard.ports.journal import Head
from tests.support.memory.journal import MemoryJournal
from tests.support.memory.queries import MemoryQueries

ANN, BOB = AccountId("ann"), AccountId("bob")
FIRST, SECOND, BOBS = OrderId("ord_1"), OrderId("ord_2"), OrderId("ord_of_bob")
AT = datetime(2025, 3, 4, 9, 30, tzinfo=UTC)
# Much longer than any machine needs: a test that waits this long has failed.
DEADLINE_SECONDS = 60.0
REPORT = ExecutionReport(
    exec_id="sim-1",
    venue=VenueName("sim"),
    venue_client_order_id=VenueClientOrderId("c"),
    venue_order_id="v",
    status="PARTIALLY_FILLED",
    last_qty=Decimal("0.1"),
    last_price=Decimal(63990),
    filled_qty_total=Decimal("0.1"),
    at=AT,
)


def accepted(account: AccountId = ANN, order_id: OrderId = FIRST) -> Change:
    return decisions.accept(
        OrderRequest(
            symbol="BTC",
            side="BUY",
            type="MARKET",
            qty=Decimal("1.5"),
            time_in_force="GTC",
            # A label with a line break must not break the framing of messages.
            client_order_id="two\nlines",
        ),
        account=account,
        order_id=order_id,
        venue=VenueName("sim"),
        venue_client_order_id=VenueClientOrderId(f"client of {order_id}"),
        key=None,
        quote=None,
        now=AT,
    )


class StreamJournal(MemoryJournal):
    """A journal that counts reads; with `chance`, each read takes a random number of loop steps."""

    def __init__(self, chance: random.Random | None = None) -> None:
        super().__init__()
        self.snapshots: dict[int, bytes] = {}
        """The order that each event made, as streams have to show it."""
        self.reads = 0
        self.replays = 0
        self.replays_at_once = 0
        self.replays_at_once_max = 0
        self.oldest_seq = 1
        self.failures = 0
        self.page_found = asyncio.Event()
        self.page_arrives = asyncio.Event()
        self.page_arrives.set()
        self.replay_arrives = asyncio.Event()
        self.replay_arrives.set()
        self._chance = chance

    async def add(self, fact: Event) -> int:
        return await self.commit(Change(events=(fact,)))

    async def commit(self, change: Change) -> int:
        """Append a change and return the number of its first event."""
        [outcome] = await self.append(0, f"group {len(self.all)}", [change], AT)
        assert isinstance(outcome, Committed)
        for order in change.orders:
            self.snapshots[len(self.all)] = encode(snapshot(order))
        return outcome.first_seq

    async def update(self, account: AccountId = ANN, order_id: OrderId | None = None) -> int:
        """Change an order once: accept it, begin an attempt, or record the attempt as unsent."""
        order_id = order_id or (FIRST if account == ANN else BOBS)
        state = (await self.load([order_id])).get(order_id)
        if state is None:
            return await self.commit(accepted(account, order_id))
        row = state.row("new", 1)
        if row.status == "sending":
            return await self.commit(decisions.record_unsent(state, row, "BROKER_DOWN", AT, AT))
        return await self.commit(decisions.begin_attempt(state, row, WorkerId("worker"), AT))

    async def report(self, order_id: OrderId = FIRST) -> int:
        """Fill a part of an order: two events."""
        [state] = (await self.load([order_id])).values()
        report = msgspec.structs.replace(
            REPORT,
            exec_id=f"sim-{len(self.all)}",
            venue_client_order_id=state.order.venue_client_order_id,
            filled_qty_total=state.order.filled_qty + REPORT.last_qty,
        )
        key = (state.order.account_id, state.order.symbol)
        position = (await self.load_positions([key])).get(key)
        return await self.commit(decisions.apply_report(state, position, report, AT))

    @property
    def all(self) -> list[JournalEvent]:
        return self.events.get(0, [])

    async def head(self, shard: int) -> Head:
        await self.pause()
        head = await super().head(shard)
        await self.pause()
        return head

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        self.reads += 1
        await self.pause()
        if self.failures:
            self.failures -= 1
            raise JournalUnavailable("unavailable")
        page = await super().read(shard, max(after_seq, self.oldest_seq - 1), limit)
        self.page_found.set()
        await self.page_arrives.wait()
        await self.pause()
        return page

    async def pause(self) -> None:
        for _ in range(self._chance.randrange(4) if self._chance else 1):
            await asyncio.sleep(0)


class StreamQueries(MemoryQueries):
    """The lookups of a book, which count its replays."""

    def __init__(self, book: StreamJournal) -> None:
        super().__init__(book)
        self._book = book

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        book = self._book
        book.replays += 1
        book.replays_at_once += 1
        book.replays_at_once_max = max(book.replays_at_once_max, book.replays_at_once)
        await book.pause()
        after = max(seq, book.oldest_seq - 1)
        page = await super().events_after(after, account_id=account_id, order_id=order_id, limit=limit)
        await book.replay_arrives.wait()
        await book.pause()
        book.replays_at_once -= 1
        return page


def hub_over(book: StreamJournal, **options: Any) -> StreamHub:
    return StreamHub(book, StreamQueries(book), **options)


async def dispatch(hub: StreamHub) -> None:
    while await hub.run_once():
        pass


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next messages; more than `count` if the last batch has more."""
    taken: list[Message] = []
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(subscription.batches(DEADLINE_SECONDS)) as batches:
        while len(taken) < count:
            taken += await anext(batches)
    return taken


async def nothing_more(subscription: Subscription) -> bool:
    """Whether all dispatched messages were taken."""
    async with aclosing(subscription.batches(0)) as batches:
        return await anext(batches) == []
