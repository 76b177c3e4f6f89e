"""The repeated-execution throttle: suspends a strategy that is filled too often, until a person lets it go on.

A strategy that enters the market again after each fill loses money faster than a person can look. Reads the journal, so
that the fills of all workers count; sets a kill of the strategy through the kill switch.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from switchyard.domain.errors import TooManyKills
from switchyard.domain.ids import AccountId, KillId, kill_id, ulid
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.risk.kills import Kill
from switchyard.flow.wake import Wake
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import Queries

log = structlog.get_logger()

# A wake-up may be missed where another process commits; the database is read at least this often.
POLL_SECONDS = 1.0
# Strategies whose fills are counted.
STRATEGIES_MAX = 10_000


class _Order(msgspec.Struct):
    status: str | None = None


class _Data(msgspec.Struct):
    order: _Order


class _Line(msgspec.Struct):
    data: _Data


_decoder = msgspec.json.Decoder(_Line)

Suspend = Callable[[AccountId, str, str, KillId], Awaitable[Kill]]
"""Set a kill of an account's strategy, for this reason and under this id; return it, or one that covers it already."""


class RepeatedExecutions:
    """Counts the filled orders of each account and strategy within a window."""

    def __init__(
        self, *, journal: Journal, queries: Queries, fills_max: int, window: timedelta, suspend: Suspend
    ) -> None:
        self._journal = journal
        self._queries = queries
        self._fills_max = fills_max
        self._window = window
        self._suspend = suspend
        self._filled: dict[AccountId, dict[str, deque[datetime]]] = {}
        self._strategies = 0
        """Of the strategies in `_filled`."""
        self._is_full = False
        """Whether the last suspension found no room."""
        self._seq: int | None = None

    async def run(self, wake: Wake) -> None:
        """Count for as long as the process lives; fills before its start do not count."""
        if self._seq is None:
            await self.start()
        while True:
            if not await self.run_once():
                await wake.wait(POLL_SECONDS)

    async def start(self) -> None:
        """Begin with the next event."""
        self._seq = (await self._journal.head(0)).seq

    async def run_once(self) -> int:
        """Count one page of events; returns how many there were."""
        assert self._seq is not None, "it was not started"
        page = await self._journal.read(0, self._seq, PAGE_MAX)
        for event in page:
            if _is_filled(event):
                await self._count(event)
            self._seq = event.seq
        return len(page)

    async def _count(self, event: JournalEvent) -> None:
        assert event.order_id is not None, "an order's event names it"
        order = await self._queries.order(event.order_id)
        if order is None or order.strategy is None:
            return
        times = self._times_of(order.account_id, order.strategy)
        times.append(event.at)
        if len(times) < self._fills_max or times[-1] - times[0] > self._window:
            return
        account_id, strategy = order.account_id, order.strategy
        reason = f"{len(times)} orders of the strategy were filled within {self._window.total_seconds():g} s"
        # All gateways count the same fills: with the id of the last one they set one kill, which a person clears once.
        new_id = kill_id(ulid(int(event.at.timestamp() * 1000), event.seq))
        try:
            kill = await self._suspend(order.account_id, order.strategy, reason, new_id)
        except TooManyKills as error:
            # The fills stay counted: the next one tries again. `/health/ready` says so for as long as it lasts.
            if not self._is_full:
                log.critical(
                    "strategy_not_suspended",
                    account_id=account_id,
                    strategy=strategy,
                    fills=len(times),
                    error=str(error),
                )
            self._is_full = True
            return
        self._is_full = False
        if kill.kill_id == new_id:  # not for fills of orders that were sent before the kill
            log.critical(
                "strategy_suspended",
                account_id=account_id,
                strategy=strategy,
                fills=len(times),
                kill_id=kill.kill_id,
            )
        self._forget(order.account_id, order.strategy)  # after it was cleared, as many fills are needed again

    def _times_of(self, account: AccountId, strategy: str) -> deque[datetime]:
        """The times of the strategy's fills; at the bound the account with the most strategies loses its oldest."""
        strategies = self._filled.setdefault(account, {})
        times = strategies.pop(strategy, None)
        if times is None:
            times = deque(maxlen=self._fills_max)
            self._strategies += 1
        strategies[strategy] = times  # the dictionary's order is the order of the last fills
        if self._strategies > STRATEGIES_MAX:
            largest = max(self._filled, key=lambda each: len(self._filled[each]))
            self._forget(largest, next(iter(self._filled[largest])))
        return times

    def _forget(self, account: AccountId, strategy: str) -> None:
        strategies = self._filled[account]
        del strategies[strategy]
        self._strategies -= 1
        if not strategies:
            del self._filled[account]


def _is_filled(event: JournalEvent) -> bool:
    if event.type != "OrderUpdated" or '"FILLED"' not in event.text:
        return False
    return _decoder.decode(event.line).data.order.status == "FILLED"
