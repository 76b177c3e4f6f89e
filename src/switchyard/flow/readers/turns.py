"""Decides when the readers of streams may write: a few at a time, one account after the other, with rests.

Writing a message to a thousand streams takes the event loop tens of milliseconds. Done at once, every order that
arrives meanwhile would wait that long. Called by `StreamHub`; wakes subscriptions.
"""

import asyncio

from switchyard.flow.readers.backlog import Backlog
from switchyard.flow.readers.subscription import Subscription

# Less than a millisecond of work, usually: what an order may have to wait for.
READERS_PER_TURN = 8
# An account with many streams leaves most of a turn to others.
READERS_PER_ACCOUNT = 2
# Streams get at most a quarter of the event loop's time.
REST_FACTOR = 3.0
# The work of others counts as the turn's own if it falls between, so the rest has an upper bound.
REST_SECONDS_MAX = 0.02


class Turns:
    """The accounts whose streams have something to write; a task runs while there are any."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Work] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, account: str, backlog: Backlog) -> None:
        """Wake the waiting subscribers of the account's backlog in due course."""
        if not backlog.waiting:
            return
        work = self._accounts.get(account)
        if work is None:
            work = self._accounts[account] = _Work()
        work.backlogs[backlog] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._accounts:
                started = loop.time()
                self._take_turn()
                # The subscribers that were woken write now.
                await asyncio.sleep(0)
                await asyncio.sleep(min((loop.time() - started) * REST_FACTOR, REST_SECONDS_MAX))
        finally:
            self._task = None

    def _take_turn(self) -> None:
        left = READERS_PER_TURN
        while self._accounts and left > 0:
            account = next(iter(self._accounts))
            work = self._accounts.pop(account)
            left -= work.wake(min(left, READERS_PER_ACCOUNT))
            if work.remains:
                self._accounts[account] = work


class _Work:
    """One account's streams that have something to write."""

    def __init__(self) -> None:
        self.backlogs: dict[Backlog, None] = {}
        self._readers: list[Subscription] = []

    @property
    def remains(self) -> bool:
        return bool(self.backlogs or self._readers)

    def wake(self, count: int) -> int:
        """Wake up to `count` subscribers and return their number."""
        woken = 0
        while woken < count:
            if self._readers:
                woken += self._readers.pop().wake()
            elif self.backlogs:
                backlog = next(iter(self.backlogs))
                del self.backlogs[backlog]
                self._readers = list(backlog.waiting)
            else:
                break
        return woken
