"""The duplicate window: an account's equal orders, whatever their idempotency keys.

An order claims its content before it is written, as a row of the key store with an operation of its own. The commit
decides which order owns a content, so two equal orders at the same time cannot both pass, over any number of gateways.
The claims are not in the journal: they last for seconds, and a rebuilt database starts without them.
"""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from switchyard.domain.errors import JournalUnavailable, SwitchyardError, TooManyKills, Unavailable
from switchyard.domain.ids import AccountId, KillId, OrderId, kill_id, ulid
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.risk.checks import CheckResult, Violation
from switchyard.domain.risk.claims import CONTENT, content_digest
from switchyard.domain.risk.kills import Kill
from switchyard.flow.clock import Wake
from switchyard.flow.commit.sequencer import Commit
from switchyard.ports.clock import Clock
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import KeyStore, Queries

# The first attempt, and one more for each claim that expires, or is given up, in between.
ATTEMPTS_MAX = 8


class ContentClaim:
    """The right to place an order with a content; given up unless the order is accepted."""

    def __init__(self, entry: KeyEntry | None = None, violation: Violation | None = None) -> None:
        self.entry = entry
        """None where nothing has to be given up."""
        self.violation = violation
        self.is_used = False
        """Whether an order was accepted under it."""


class RecentContents:
    """Claims the content of new orders; without a window none has to."""

    def __init__(self, window: timedelta, *, keys: KeyStore, commit: Commit, clock: Clock) -> None:
        self._window = window
        self._keys = keys
        self._commit = commit
        self._clock = clock

    @property
    def is_on(self) -> bool:
        """Whether there is a window."""
        return bool(self._window)

    @contextlib.asynccontextmanager
    async def claimed(self, account: AccountId, order: OrderRequest, owner: str) -> AsyncIterator[ContentClaim]:
        """ContentClaim the order's content for as long as the window, or find the violation.

        `owner` identifies the intent, which may claim its content again; empty for a request without a key.
        """
        claim = await self._claim(account, order, owner)
        try:
            yield claim
        except Unavailable:  # nothing was written; after any other error the order may be there
            await self._give_up(claim)
            raise
        if not claim.is_used:
            await self._give_up(claim)

    async def checks(self, account: AccountId, order: OrderRequest) -> list[CheckResult]:
        """Return whether the content is free, for the dry run; claims nothing."""
        if not self._window:
            return []
        entry = await self._keys.entry(account, CONTENT, content_digest(order))
        is_taken = entry is not None and self._clock.now() < entry.expiry(self._clock.jumped_at)
        return [CheckResult("DUPLICATE_CONTENT", self._violation() if is_taken else None)]

    async def _claim(self, account: AccountId, order: OrderRequest, owner: str) -> ContentClaim:
        digest = content_digest(order)
        generation, version = 0, 1
        for _ in range(ATTEMPTS_MAX):
            now = self._clock.now()
            entry = KeyEntry(
                account_id=account,
                operation=CONTENT,
                idempotency_key=digest,
                generation=generation,
                order_id=OrderId(""),
                request_digest=owner,
                created_at=now,
                expires_at=now + self._window,
                version=version,
            )
            outcome = await self._commit(Change(keys=(entry,)))
            if isinstance(outcome, Committed):
                return ContentClaim(entry)
            existing = outcome.key
            if existing is None:  # it was removed after it had expired
                generation, version = 0, 1
            elif owner and existing.request_digest == owner:
                return ContentClaim()
            elif now < existing.expiry(self._clock.jumped_at):
                return ContentClaim(violation=self._violation())
            else:
                generation, version = existing.generation + 1, existing.version + 1
        raise JournalUnavailable(f"the order's content was not claimed in {ATTEMPTS_MAX} attempts: repeat the request")

    async def _give_up(self, claim: ContentClaim) -> None:
        if claim.entry is None:
            return
        ended = msgspec.structs.replace(claim.entry, expires_at=claim.entry.created_at, version=claim.entry.version + 1)
        with contextlib.suppress(SwitchyardError):  # it expires by itself
            await self._commit(Change(keys=(ended,)))

    def _violation(self) -> Violation:
        seconds = self._window.total_seconds()
        return Violation(
            "DUPLICATE_CONTENT", f"an equal order was placed less than {seconds:g} s ago (RISK_DUPLICATE_WINDOW_SEC)"
        )


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
