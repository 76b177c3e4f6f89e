"""The paper exchange: takes commands from the worker and from a person, one at a time, in a thread of its own."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal, NamedTuple, assert_never

import structlog
from msgspec.structs import replace

from switchyard.adapters.threads import WorkerThreads
from switchyard.adapters.venues.paper.book import Book, RecentReports, cursor_text, number_of
from switchyard.adapters.venues.paper.market import Market, QuoteOf, market_step
from switchyard.adapters.venues.paper.matching import Displayed, PaperOrder, Rules
from switchyard.adapters.venues.paper.settlement import BUSY, Settlement
from switchyard.adapters.venues.paper.store import Store, venue_order
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import ALL_KINDS, Order
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.claims import UTC_DAY, TradingDay
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    OnDeparture,
    OrderToFind,
    ProbeResult,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueUnavailable,
    ignore_departure,
)


class Command(NamedTuple):
    """A request for one or more orders, and the future of their outcomes that its caller awaits."""

    kind: Literal["submit", "cancel", "amend"]
    orders: Sequence[Order]
    outcomes: asyncio.Future[list[SendOutcome]]
    amend: Amend | None = None
    """Of the one order of an amend."""


def with_reports(
    group: Sequence[Command], outcomes: Sequence[SendOutcome], reports: Sequence[ExecutionReport]
) -> list[SendOutcome]:
    """The outcomes of the group; those of new orders with the reports on them."""
    by_order: dict[VenueClientOrderId, list[ExecutionReport]] = {}
    for report in reports:
        by_order.setdefault(report.venue_client_order_id, []).append(report)
    orders = [(command.kind, order) for command in group for order in command.orders]
    return [
        replace(outcome, reports=tuple(by_order.get(order.venue_client_order_id, ())))
        if kind == "submit" and isinstance(outcome, Accepted)
        else outcome
        for (kind, order), outcome in zip(orders, outcomes, strict=True)
    ]


def resolve(commands: Iterable[Command], outcomes: Sequence[SendOutcome]) -> None:
    """Give each command the outcomes of its orders."""
    start = 0
    for command in commands:
        end = start + len(command.orders)
        # Done if the caller was cancelled; its orders remain in the book.
        if not command.outcomes.done():
            command.outcomes.set_result(list(outcomes[start:end]))
        start = end
    assert start == len(outcomes)


# An open order takes about 1 KB of memory.
OPEN_ORDERS_MAX = 1_000_000
# A few seconds of work; beyond it the exchange answers `VENUE_BUSY` instead of queueing.
WAITING_MAX = 20_000
# Every order in a group waits for the group's commit; larger groups reduce the cost per order no further.
GROUP_MAX = 1_000
# Four pages make a group, so that the next page is on its way while a group is committed.
BATCH_MAX = 256
# Symbols with resting orders that are compared with the market per market step.
SYMBOLS_PER_STEP_MAX = 256
RECENT_REPORTS_MAX = 20_000
# Polling interval while orders are open and no command arrives. Polling, because a test may move the clock.
LOOK_SECONDS = 0.05
# After a failed commit the book is reloaded at this interval: soon enough to recover, rarely enough for the log.
RETRY_SECONDS = 1.0
DOWN = Unsent("VENUE_DOWN")

log = structlog.get_logger()


class PaperExchange:
    """Fills orders against a simulated market, or another venue's quotes; an acknowledged order survives a crash.

    One task owns the book. It takes all waiting commands as one group, settles and commits them on the exchange's own
    thread, and then resolves their futures. Commands that arrive during the commit form the next group.
    """

    def __init__(
        self,
        name: VenueName,
        *,
        path: Path,
        catalogue: Catalogue,
        clock: Clock,
        quote: QuoteOf | None = None,
        delay: timedelta = timedelta(),
        partial_steps: int = 1,
        reject_all: bool = False,
        displayed_qty: Decimal | None = None,
        session: TradingDay = UTC_DAY,
        open_orders_max: int = OPEN_ORDERS_MAX,
    ) -> None:
        assert delay >= timedelta()
        assert partial_steps >= 1
        # The acceptance window is zero: the exchange runs in the sender's process, so no request outlives the sender.
        self.capabilities = Capabilities(
            dedupe="permanent",
            lookup="all",
            acceptance_window=timedelta(),
            batch_max=BATCH_MAX,
            kinds=ALL_KINDS,
            post_only=True,
            amend="in_place",
        )
        self._rules = Rules(
            venue=name, delay=delay, partial_steps=partial_steps, reject_all=reject_all, session=session
        )
        self._displayed_qty = displayed_qty
        self._displayed = Displayed(displayed_qty)
        self._path = path
        self._catalogue = catalogue
        self._clock = clock
        self._quote = quote or Market(catalogue).quote
        self._open_orders_max = open_orders_max
        self._waiting: deque[Command] = deque()
        self._waiting_count = 0
        self._arrived = asyncio.Event()
        self._recent = RecentReports(RECENT_REPORTS_MAX)
        self._step_seen = 0
        self._thread = WorkerThreads(f"paper-{name}")
        self._store: Store | None = None
        self._book: Book | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def name(self) -> VenueName:
        """The venue's name in the router and the settings."""
        return self._rules.venue

    async def start(self) -> None:
        """Open the book and start trading; raises AlreadyRunning if another process has it open."""
        self._store = await self._thread.call(Store, self._path, self.name, self._clock.now())
        self._book = await self._thread.call(self._store.load)
        self._recent = RecentReports(RECENT_REPORTS_MAX, self._book.last_report)
        self._task = asyncio.create_task(self._run(), name=f"paper exchange {self.name}")

    async def close(self) -> None:
        """Finish the current group, answer waiting commands with `VENUE_DOWN` and close the book."""
        self._closing = True
        if self._task is not None:
            self._arrived.set()
            await self._task
            self._task = None
            self._recent.wake()
        if self._store is not None:
            await self._thread.call(self._store.close)
            self._store = None
        self._thread.shutdown()

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Accept an order; it is durable when this returns `Accepted`."""
        [outcome] = await self.submit_many([order], on_departure)
        return outcome

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        """Accept orders in one commit; they are durable when this returns `Accepted`.

        When the queue has no room for all of them, none is accepted: a later order does not pass an earlier one.
        """
        on_departure()  # the queue below preserves the order of arrival
        return await self._request("submit", orders)

    async def cancel(self, order: Order) -> SendOutcome:
        """Cancel the remainder of an order; a repeated cancel has no effect."""
        [outcome] = await self._request("cancel", [order])
        return outcome

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        """Change the quantity or price of an open order; the change is durable when this returns `Accepted`."""
        [outcome] = await self._request("amend", [order], amend)
        return outcome

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        """Return the order as the exchange has it, or None; the id of its last amend finds it too."""
        orders, _ = await self._thread.call(self._open_store.find, [order.client_order_id])
        orders = orders or await self._thread.call(self._open_store.find_amended, order.client_order_id)
        return venue_order(orders[0]) if orders else None

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that may still be filled, in one page: OPEN_ORDERS_MAX bounds it."""
        yield [venue_order(order) for order in await self._thread.call(self._open_store.open_orders)]

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        """Return the next execution reports; waits up to half a second if there are none."""
        last = number_of(after)
        if not self._closing:
            await self._recent.wait(last)
        page = self._recent.page(last, limit)
        if page is None:
            numbers = self._recent.unread(last)[:limit]
            reports = await self._thread.call(self._open_store.reports, numbers)
            page = ReportPage(reports, cursor_text(numbers[-1]), restarted=numbers[-1] < last)
        return page

    async def probe(self) -> ProbeResult:
        """The exchange runs in this process; without its book it takes no orders."""
        if problem := self._open_store.files.problem:
            raise VenueUnavailable(f"{problem}: restart this process")
        return "answered"

    @property
    def _open_store(self) -> Store:
        # Without the book a lookup would return None, which means 'no such order'.
        assert self._store is not None, "the paper exchange is not running"
        return self._store

    async def _request(
        self, kind: Literal["submit", "cancel", "amend"], orders: Sequence[Order], amend: Amend | None = None
    ) -> list[SendOutcome]:
        if self._task is None or self._closing:
            return [DOWN] * len(orders)
        if self._waiting_count + len(orders) > WAITING_MAX:
            return [BUSY] * len(orders)
        outcomes: asyncio.Future[list[SendOutcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append(Command(kind, orders, outcomes, amend))
        self._waiting_count += len(orders)
        self._arrived.set()
        return await outcomes

    async def _run(self) -> None:
        while not self._closing:
            await self._wait()
            await self._run_once()
        resolve(self._waiting, [DOWN] * self._waiting_count)

    async def _wait(self) -> None:
        if self._waiting:
            return
        self._arrived.clear()
        pause_seconds = self._pause_seconds()
        if pause_seconds is None:
            await self._arrived.wait()
            return
        # Cheaper than a time-out of the wait; an arrival without a command only looks at the open orders.
        timer = asyncio.get_running_loop().call_later(pause_seconds, self._arrived.set)
        await self._arrived.wait()
        timer.cancel()

    def _pause_seconds(self) -> float | None:
        if self._book is None:
            return RETRY_SECONDS
        if not self._book.open_count:
            return None
        due_at = self._book.next_due_at()
        if due_at is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.0, (due_at - self._clock.now()).total_seconds()))

    async def _run_once(self) -> None:
        """Settle one group: waiting commands, due reports and resting orders whose price the market reached."""
        group, order_count = self._take_group()
        now = self._clock.now()
        outcomes: Sequence[SendOutcome] = [DOWN] * order_count
        reports: Sequence[ExecutionReport] = ()
        try:
            book = self._book if self._book is not None else await self._thread.call(self._open_store.load)
            self._book = None
            due = book.take_due(now, GROUP_MAX)
            reached = self._reached(book, now)
            if group or due or reached:
                symbols = {order.symbol for command in group for order in command.orders}
                quotes = {symbol: self._quote(symbol, now) for symbol in symbols}
                outcomes = [Ambiguous("UNKNOWN", "the paper exchange's book could not be written")] * order_count
                outcomes, reports = await self._thread.call(self._settle, book, group, due, reached, quotes, now)
                outcomes = with_reports(group, outcomes, reports)
            # Kept only if it matches the file; after an exception the next group reloads it.
            self._book = book
        except Exception:
            log.exception("paper_exchange_group_failed", venue=self.name, orders=order_count)
        # The answers first, so that an order's history shows the answer before the report.
        resolve(group, outcomes)
        if self._book is not None:
            self._recent.publish(reports, self._book.last_report)

    def _take_group(self) -> tuple[list[Command], int]:
        """Take waiting commands with up to GROUP_MAX orders, at least one command; returns the number of orders too."""
        group: list[Command] = []
        order_count = 0
        while self._waiting and (not group or order_count + len(self._waiting[0].orders) <= GROUP_MAX):
            command = self._waiting.popleft()
            order_count += len(command.orders)
            group.append(command)
        self._waiting_count -= order_count
        return group, order_count

    def _reached(self, book: Book, now: datetime) -> list[tuple[PaperOrder, Quote]]:
        step = market_step(now)
        if step == self._step_seen:
            return []
        self._step_seen = step
        symbols = book.take_symbols(SYMBOLS_PER_STEP_MAX)
        found = {symbol: self._quote(symbol, now) for symbol in symbols}
        quotes = {symbol: quote for symbol, quote in found.items() if quote is not None}
        reached = [*book.marketable(quotes, GROUP_MAX), *book.triggered(quotes, GROUP_MAX)]
        return [(order, quotes[order.symbol]) for order in reached]

    def _settle(
        self,
        book: Book,
        group: Sequence[Command],
        due: Sequence[PaperOrder],
        reached: Sequence[tuple[PaperOrder, Quote]],
        quotes: dict[str, Quote | None],
        now: datetime,
    ) -> tuple[list[SendOutcome], list[ExecutionReport]]:
        """Decide, commit, then change the book in memory; runs on the exchange's thread."""
        store = self._open_store
        client_ids = {order.venue_client_order_id for command in group for order in command.orders}
        known, rejected = store.find(client_ids) if client_ids else ((), {})
        self._displayed.begin(market_step(now), self._displayed_qty)
        settlement = Settlement(
            book, store.book_id, known, rejected, self._rules, self._open_orders_max, now, self._displayed
        )
        # Before the commands: a fill that is already due takes precedence over a cancel.
        settlement.advance_time(due, reached)
        outcomes: list[SendOutcome] = []
        for kind, orders, _, amend in group:
            match kind:
                case "submit":
                    for order in orders:
                        instrument = self._catalogue.find(order.symbol)
                        outcomes.append(settlement.submit(order, instrument, quotes[order.symbol]))
                case "cancel":
                    outcomes += [settlement.cancel(order.venue_client_order_id) for order in orders]
                case "amend":
                    assert amend is not None
                    [order] = orders
                    instrument = self._catalogue.find(order.symbol)
                    client_id = order.venue_client_order_id
                    outcomes.append(settlement.amend(amend, client_id, instrument, quotes[order.symbol]))
                case _:
                    assert_never(kind)
        changed, reports = settlement.changed.values(), settlement.reports
        store.commit(changed, settlement.rejections, reports, first_report=book.last_report + 1)
        book.apply(changed, len(reports))
        return outcomes, reports
