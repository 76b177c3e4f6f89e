"""The paper exchange: the default venue, in this process, with a durable book of its own."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec, TypeVar

import structlog

from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.market import Market
from switchyard.adapters.venues.paper.matching import PaperOrder, Rules
from switchyard.adapters.venues.paper.recent import RecentReports
from switchyard.adapters.venues.paper.settlement import BUSY, Settlement
from switchyard.adapters.venues.paper.store import Store
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.instruments import Catalogue
from switchyard.domain.orders import Order
from switchyard.domain.reports import ExecutionReport
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    Ambiguous,
    Capabilities,
    OnDeparture,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    ignore_departure,
)

# About a kilobyte of memory each.
OPEN_ORDERS_MAX = 1_000_000
# Some seconds of work: a caller that would wait longer is better told to come back.
WAITING_MAX = 20_000
# A group keeps everyone in it waiting; beyond this, larger ones no longer spread the cost of a commit noticeably.
GROUP_MAX = 1_000
# How many symbols with resting orders are compared with the market in one step of its walk.
SYMBOLS_PER_STEP_MAX = 256
RECENT_REPORTS_MAX = 20_000
# How often the clock is looked at while orders are open and nobody calls: the clock may be one that a test moves.
LOOK_SECONDS = 0.05
# A book that could not be written is read again at this pace: often enough to recover, seldom enough for the log.
RETRY_SECONDS = 1.0
DOWN = Unsent("VENUE_DOWN")

log = structlog.get_logger()
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Command(NamedTuple):
    """What somebody asked for and waits for."""

    kind: Literal["submit", "cancel"]
    order: Order
    answer: asyncio.Future[SendOutcome]


class PaperExchange:
    """Fills orders against a made-up market and never forgets one it has acknowledged.

    One task owns the book. It takes everything that waits as one group, settles and commits it on the exchange's own
    thread, and only then answers; while it commits, the next group gathers.
    """

    def __init__(
        self,
        name: VenueName,
        *,
        path: Path,
        catalogue: Catalogue,
        clock: Clock,
        seed: int = 0,
        delay: timedelta = timedelta(),
        partial_steps: int = 1,
        reject_all: bool = False,
        open_orders_max: int = OPEN_ORDERS_MAX,
    ) -> None:
        assert delay >= timedelta()
        assert partial_steps >= 1
        self._rules = Rules(venue=name, delay=delay, partial_steps=partial_steps, reject_all=reject_all)
        self._path = path
        self._catalogue = catalogue
        self._clock = clock
        self._market = Market(catalogue, seed)
        self._open_orders_max = open_orders_max
        self._waiting: deque[Command] = deque()
        self._arrived = asyncio.Event()
        self._recent = RecentReports(RECENT_REPORTS_MAX)
        self._step_seen = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"paper-{name}")
        self._store: Store | None = None
        self._book: Book | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def name(self) -> VenueName:
        """What the router and the settings call it."""
        return self._rules.venue

    @property
    def capabilities(self) -> Capabilities:
        """Client order ids are recognised for good, and orders can be looked up.

        There is no window: it lives in the sender's process, so nothing is on its way once that is gone.
        """
        return Capabilities(dedupe="forever", lookup="all", acceptance_window=timedelta())

    async def start(self) -> None:
        """Open the book and begin to trade; raises AlreadyRunning when another process has it open."""
        self._store = await self._on_thread(Store, self._path, self.name, self._clock.now())
        self._book = await self._on_thread(self._store.load)
        self._recent = RecentReports(RECENT_REPORTS_MAX, self._book.last_report)
        self._task = asyncio.create_task(self._run(), name=f"paper exchange {self.name}")

    async def close(self) -> None:
        """Finish the group at hand, send the rest of the callers away and close the book."""
        self._closing = True
        if self._task is not None:
            self._arrived.set()
            await self._task
            self._task = None
            self._recent.wake()
        if self._store is not None:
            await self._on_thread(self._store.close)
            self._store = None
        self._thread.shutdown()

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Take an order; it is durable when this answers `Accepted`."""
        on_departure()  # from here on orders are taken in the order in which they came
        return await self._ask("submit", order)

    async def cancel(self, order: Order) -> SendOutcome:
        """Drop what is left of an order; a repeated cancel is harmless."""
        return await self._ask("cancel", order)

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """The order as the exchange has it, or none."""
        for order in await self._on_thread(self._opened.find_orders, [client_id]):
            return _shown(order)
        return None

    async def open_orders(self) -> Sequence[VenueOrder]:
        """Every order that may still be filled."""
        return [_shown(order) for order in await self._on_thread(self._opened.open_orders)]

    async def reports(self, after: int, limit: int) -> ReportPage:
        """The next execution reports; waits half a second when there are none."""
        if not self._closing:
            await self._recent.wait(after)
        page = self._recent.page(after, limit)
        if page is None:
            numbers = self._recent.missed(after)[:limit]
            page = ReportPage(await self._on_thread(self._opened.reports, numbers), numbers[-1])
        return page

    def quote(self, symbol: str) -> Quote | None:
        """The market right now."""
        return self._market.quote(symbol, self._clock.now())

    async def ask_quote(self, symbol: str) -> Quote | None:
        """The market right now, or none where the venue has none; raises VenueUnavailable."""
        return self.quote(symbol)

    @property
    def _opened(self) -> Store:
        # An answer made up without the book could be taken for 'no such order'.
        assert self._store is not None, "the paper exchange is not running"
        return self._store

    async def _ask(self, kind: Literal["submit", "cancel"], order: Order) -> SendOutcome:
        if self._task is None or self._closing:
            return DOWN
        if len(self._waiting) >= WAITING_MAX:
            return BUSY
        answer: asyncio.Future[SendOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(Command(kind, order, answer))
        self._arrived.set()
        return await answer

    async def _run(self) -> None:
        while not self._closing:
            await self._wait()
            await self._run_once()
        _answer(self._waiting, [DOWN] * len(self._waiting))

    async def _wait(self) -> None:
        if not self._waiting:
            self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_seconds()):
                await self._arrived.wait()

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
        """Settle one group: what waits, what is due, what the market has come to."""
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MAX))]
        now = self._clock.now()
        answers: Sequence[SendOutcome] = [DOWN] * len(group)
        try:
            book = self._book if self._book is not None else await self._on_thread(self._opened.load)
            self._book = None
            due = book.take_due(now, GROUP_MAX)
            reached = self._reached(book, now)
            reports: Sequence[ExecutionReport] = ()
            if group or due or reached:
                quotes = {command.order.symbol: self._market.quote(command.order.symbol, now) for command in group}
                answers = [Ambiguous("UNKNOWN", "the paper exchange's book could not be written")] * len(group)
                answers, reports = await self._on_thread(self._settle, book, group, due, reached, quotes, now)
            # Only a book that agrees with the file is kept; after a failure it is read again.
            self._book = book
            self._recent.publish(reports, book.last_report)
        except Exception:
            log.exception("paper_exchange_group_failed", venue=self.name, commands=len(group))
        _answer(group, answers)

    def _reached(self, book: Book, now: datetime) -> list[PaperOrder]:
        step = self._market.step(now)
        if step == self._step_seen:
            return []
        self._step_seen = step
        symbols = book.take_symbols(SYMBOLS_PER_STEP_MAX)
        return book.reached({symbol: self._market.quote(symbol, now) for symbol in symbols}, GROUP_MAX)

    def _settle(
        self,
        book: Book,
        group: Sequence[Command],
        due: Sequence[PaperOrder],
        reached: Sequence[PaperOrder],
        quotes: dict[str, Quote],
        now: datetime,
    ) -> tuple[list[SendOutcome], list[ExecutionReport]]:
        """Decide, write, and only then change the book in memory."""
        store = self._opened
        client_ids = [command.order.venue_client_order_id for command in group]
        known, rejected = store.find_orders(client_ids), store.find_rejections(client_ids)
        settlement = Settlement(book, store.book_id, known, rejected, self._rules, self._open_orders_max, now)
        # Time passes before anyone's wish is heard: a fill that is due wins over a cancel.
        settlement.let_time_pass(due, reached)
        answers: list[SendOutcome] = []
        for kind, order, _ in group:
            if kind == "submit":
                instrument = self._catalogue.find(order.symbol)
                answers.append(settlement.submit(order, instrument, quotes[order.symbol]))
            else:
                answers.append(settlement.cancel(order.venue_client_order_id))
        changed, reports = settlement.changed.values(), settlement.reports
        store.commit(changed, settlement.rejections, reports, first_report=book.last_report + 1)
        book.apply(changed, len(reports))
        return answers, reports

    async def _on_thread(
        self, call: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        assert not kwargs
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)


def _shown(order: PaperOrder) -> VenueOrder:
    return VenueOrder(
        venue_client_order_id=order.client_id,
        venue_order_id=order.venue_order_id,
        status=order.status,
        filled_qty=order.filled_qty,
        fills=order.fills,
    )


def _answer(commands: Sequence[Command], answers: Sequence[SendOutcome]) -> None:
    for command, answer in zip(commands, answers, strict=True):
        # A caller that has given up is gone; its order stands all the same.
        if not command.answer.done():
            command.answer.set_result(answer)
