"""Rechecks an account's strategy: reads its fills and orders, computes metrics, health and artifacts, enforces health.

Reads the books and the journal; writes nothing but, through `enforce`, a kill. Computation is done in threads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
import structlog

from switchyard.domain.books.entries import Adoption, LedgerEntry, parse_entry
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.metrics import (
    Basis,
    Minimum,
    Slippage,
    StrategyOrder,
    Track,
    Window,
    fill_of,
    judge,
    measure,
    shown,
)
from switchyard.domain.strategies.registry import Strategy
from switchyard.domain.strategies.report import FillsTable, files, selected
from switchyard.domain.strategies.requests import ARTIFACT_BYTES_MAX, ItemResult, RecheckRequest
from switchyard.ports.books import ENTRIES_MAX, EntryKey, LedgerLookup, StoredEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Epoch, Journal
from switchyard.ports.queries import Queries
from switchyard.ports.strategies import ORDERS_MAX, BooksState, NewArtifact, StrategyFills, StrategyOrders

log = structlog.get_logger()

# The books are usually a fraction of a second behind; after this they have another problem.
BOOKS_SECONDS_MAX = 30.0
BOOKS_POLL_SECONDS = 0.05
# A few hundred megabytes. A strategy with more is rechecked over a shorter window.
WINDOW_ORDERS_MAX = 500_000
_SMALLEST = timedelta(microseconds=1)

Enforce = Callable[[RecheckRequest, Strategy, tuple[str, ...]], Awaitable[str | None]]
"""Restrict an unhealthy strategy; returns a sentence about what was done, none where nothing was."""
Confirm = Callable[[], Awaitable[None]]
"""Raises LostFence where another worker has claimed the item: a worker that was paused must not act on old figures."""


class CannotRecheck(SwitchyardError):
    """The recheck ends without a result."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RecheckRules(msgspec.Struct, frozen=True):
    """The settings of rechecks."""

    days_per_year: int
    minimum: Minimum


class Rechecked(msgspec.Struct, frozen=True):
    """What a recheck found, to be stored with its item."""

    result: ItemResult
    artifacts: list[NewArtifact]


class Recheck:
    """The job."""

    def __init__(
        self,
        *,
        journal: Journal,
        queries: Queries,
        orders: StrategyOrders,
        fills: StrategyFills,
        clock: Clock,
        rules: RecheckRules,
        enforce: Enforce,
    ) -> None:
        self._journal = journal
        self._queries = queries
        self._orders = orders
        self._fills = fills
        self._clock = clock
        self._rules = rules
        self._enforce = enforce

    async def check(self, request: RecheckRequest, strategy: Strategy, confirm: Confirm) -> Rechecked:
        """Recheck the strategy; raises CannotRecheck. A dry run computes the same and enforces nothing.

        `confirm` is called before anything is enforced.
        """
        # A time after the acceptance has not happened yet: it is no idle day, and a repeat must find the same window.
        last = min(request.window.to, request.created_at)
        window = Window(request.window.from_, last + _SMALLEST)
        account = strategy.account_id
        books_seq = await self._wait_for_books(account)
        orders = [] if account is None else await self._read_orders(account, strategy.strategy_id, window)
        course = _Course(window, orders)
        if account is not None:
            async for page in self._fills.pages(account, strategy.strategy_id):
                await asyncio.to_thread(course.take, page)

        def computed() -> Rechecked:
            course.track.finish()
            rules = self._rules
            measured = measure(course.track, orders, course.slippage, Basis(strategy.capital, rules.days_per_year))
            judgement = judge(measured, strategy.thresholds, rules.minimum)
            found = files(
                request,
                strategy,
                course.track,
                measured,
                judgement,
                course.table,
                window_to=last,
                books_seq=books_seq,
                days_per_year=rules.days_per_year,
            )
            result = ItemResult(
                health=judgement.health,
                health_reasons=judgement.reasons,
                metrics={
                    name: shown(name, measured.metrics[name], measured.currency) for name in selected(request, strategy)
                },
            )
            artifacts = [
                NewArtifact(name=file.name, media_type=file.media_type, content=file.content) for file in found
            ]
            return Rechecked(result, artifacts)

        found = await asyncio.to_thread(computed)
        if request.dry_run or found.result.health != "unhealthy":
            return found
        await confirm()
        return await self._enforced(request, strategy, found)

    async def _enforced(self, request: RecheckRequest, strategy: Strategy, found: Rechecked) -> Rechecked:
        result = found.result
        done = await self._enforce(request, strategy, result.health_reasons)
        if done is None:
            return found
        return msgspec.structs.replace(
            found,
            result=msgspec.structs.replace(
                result, enforced="reduce_only", health_reasons=(*result.health_reasons, done)
            ),
        )

    async def _wait_for_books(self, account: AccountId | None) -> int:
        """Wait until the books have all that the journal has now of the account; returns the journal's last event.

        Only this account matters: the entries of one account never depend on another. A strategy of a client has none.
        """
        problem = await self._fills.problem()
        if problem is not None:
            raise CannotRecheck("BOOKS_HALTED", f"there are no books: {problem}")
        head = await self._journal.head(0)
        if account is None:
            return head.seq
        epochs = await self._journal.epochs(0)
        last = await self._queries.last_events(account_id=account, before=head.seq + 1, limit=1)
        deadline = self._clock.monotonic() + BOOKS_SECONDS_MAX
        while last:
            state = await self._fills.state(account)
            if _is_lost(state, epochs):
                raise CannotRecheck(
                    "BOOKS_HALTED",
                    f"the books have read event {state.seq} of the account {account}, which the journal lost when "
                    "it was restored: run `switchyard backoffice adopt-epoch` or `switchyard backoffice rebuild`",
                )
            if state.seq >= last[0].seq:
                break
            if state.problem is not None:
                raise CannotRecheck("BOOKS_HALTED", f"the account {account} has halted in the books: {state.problem}")
            if self._clock.monotonic() > deadline:
                raise CannotRecheck(
                    "BOOKS_BEHIND",
                    f"the books have read the account {account} up to event {state.seq} of {last[0].seq} after "
                    f"{BOOKS_SECONDS_MAX:g} s: request the recheck again when backoffice_lag_events is low",
                )
            await asyncio.sleep(BOOKS_POLL_SECONDS)
        return head.seq

    async def _read_orders(self, account: AccountId, strategy: str, window: Window) -> list[StrategyOrder]:
        found: list[StrategyOrder] = []
        while True:
            after = found[-1].order_id if found else None
            page = await self._orders.page(account, strategy, window, after, ORDERS_MAX)
            found += page
            if len(page) < ORDERS_MAX:
                return found
            if len(found) > WINDOW_ORDERS_MAX:
                raise CannotRecheck(
                    "TOO_MANY_ORDERS", f"more than {WINDOW_ORDERS_MAX} orders in the window: choose a shorter one"
                )


def _is_lost(state: BooksState, epochs: Sequence[Epoch]) -> bool:
    """Whether the books' last event of an account is one that a later epoch of the journal does not follow."""
    return any(epoch.epoch > state.epoch and state.seq > epoch.after_seq for epoch in epochs)


class _Course:
    """The fold over a strategy's entries; used by one thread at a time."""

    def __init__(self, window: Window, orders: list[StrategyOrder]) -> None:
        self.track = Track(window)
        self.slippage = Slippage()
        self.table = FillsTable(ARTIFACT_BYTES_MAX)
        self._orders = {order.order_id: order for order in orders}

    def take(self, entries: list[LedgerEntry]) -> None:
        for entry in entries:
            fill = fill_of(entry)
            self.track.take(fill)
            if fill.is_trade and self.track.window.covers(fill.at):
                self.slippage.take(fill, self._orders.get(fill.order_id))
                self.table.add(fill)


# Of the types of entries, those that the results of a strategy follow from.
_MOVING: Final = frozenset({"Fill", "OpeningPosition", "Fee"})


class _Kind(msgspec.Struct, rename="camel"):
    """What decides whether an entry counts."""

    type: str
    entry_id: str
    reverses: str | None = None


class _Place(msgspec.Struct, rename="camel"):
    """Where an entry is among those of its account."""

    at: datetime
    number: int


_kind = msgspec.json.Decoder(_Kind)
_place = msgspec.json.Decoder(_Place)


class FollowingLedger(Protocol):
    """What is read of a ledger."""

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Return the next entries of an account's strategy, by time and number."""

    async def adoptions(self) -> list[Adoption]:
        """Return the epochs that people had the books follow."""


class LedgerFills:
    """ports.strategies.StrategyFills over the back office's ledger."""

    def __init__(self, ledger: FollowingLedger, lookup: LedgerLookup) -> None:
        self._ledger = ledger
        self._lookup = lookup

    async def problem(self) -> str | None:
        """None: there are books."""
        return None

    async def state(self, account: AccountId) -> BooksState:
        """How far the books are with an account, whichever bus they read it from."""
        found = await self._lookup.find_account(account)
        if found is None:
            return BooksState()
        adopted = max((each.epoch for each in await self._ledger.adoptions()), default=0)
        return BooksState(max(found.epoch, adopted), found.seq, found.halted)

    async def pages(self, account: AccountId, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """All fills of the strategy; one that was reversed counts as if it had never been."""
        # A reversal may come long after its fill, so the entries are looked through for them first.
        reversed_ids = {
            kind.reverses
            async for rows in self._rows(account, strategy)
            for row in rows
            if '"reverses"' in row.text and (kind := _kind.decode(row.text)).reverses is not None
        }
        async for rows in self._rows(account, strategy):
            # In a thread: a page takes tens of milliseconds, for which no order may wait.
            yield await asyncio.to_thread(_moving, rows, reversed_ids)

    async def _rows(self, account: AccountId, strategy: str) -> AsyncIterator[list[StoredEntry]]:
        after: EntryKey | None = None
        while rows := await self._ledger.strategy_entries(account, strategy, after, ENTRIES_MAX):
            yield rows
            last = _place.decode(rows[-1].text)
            after = EntryKey(last.at, last.number)


def _moving(rows: list[StoredEntry], reversed_ids: Collection[str | None]) -> list[LedgerEntry]:
    """The entries that results follow from."""
    kinds = [(row, _kind.decode(row.text)) for row in rows]
    return [parse_entry(row.text) for row, kind in kinds if kind.type in _MOVING and kind.entry_id not in reversed_ids]


class NoBooks:
    """ports.strategies.StrategyFills of a process whose installation keeps no books."""

    async def problem(self) -> str | None:
        """Why there is nothing to read."""
        return "no process keeps them (SWITCHYARD_BACKOFFICE=false)"

    async def state(self, _account: AccountId) -> BooksState:
        """Nothing was read."""
        return BooksState()

    async def pages(self, _account: AccountId, _strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Nothing."""
        return
        yield []
