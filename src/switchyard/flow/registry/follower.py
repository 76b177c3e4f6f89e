"""Registers the strategies of accepted orders, and removes those that have been unused for long.

Reads the journal; writes the registry and its own cursor. A strategy belongs to the account of its orders.
"""

import asyncio
from collections import Counter
from datetime import timedelta

import structlog

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import Place, link
from switchyard.domain.strategies.registry import STRATEGIES_MAX, StrategyKey, Tenant, tenant_of_account
from switchyard.domain.values import STRATEGY
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.strategies import RecheckRequests, StrategyRegistry

log = structlog.get_logger()

EVENTS_MAX = 500
# Nobody waits for a strategy to be registered, so a page may cover the orders of half a second.
POLL_SECONDS = 0.5
# While it is behind, it pauses so many times as long as the last page took: orders go first.
PAUSES = 20
# At most so long: a burst of 10,000 orders, some 50,000 events, is looked through within seconds.
PAUSE_SECONDS_MAX = 0.05
# The place is stored with new strategies, else once in so many events: reading them again at a start costs less than a
# flush to the disk beside those of orders.
SAVED_EVENTS = 20_000
# The strategies of this process's pages; a strategy that is known needs no write.
KNOWN_MAX = 20_000
# After this time they are looked up again: a strategy may have been deleted, and its next order registers it anew.
KNOWN_SECONDS = 60.0


class StrategyFollower:
    """Follows the journal into the registry."""

    def __init__(self, journal: Journal, registry: StrategyRegistry, *, clock: Clock) -> None:
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._known: set[StrategyKey] = set()
        self._full: set[Tenant] = set()
        """Tenants at their bound of strategies: none of theirs is written until the known ones are looked up again."""
        self._known_since = clock.monotonic()
        self._saved = Place()
        self._place: Place | None = None
        """The last event that was looked through; none where only the registry can tell."""

    async def run_once(self) -> int:
        """Look through one page of events and return their number."""
        if self._place is None:
            self._place = self._saved = await self._registry.place()
        place = self._place
        events = await self._journal.read(0, place.seq, EVENTS_MAX)
        if not await self._follows(place, events):
            log.warning("strategies_read_again", seq=place.seq)
            await self._save(Place(), [])
            return EVENTS_MAX
        if not events:
            return 0
        if self._clock.monotonic() - self._known_since >= KNOWN_SECONDS:
            self._known.clear()
            self._full.clear()
            self._known_since = self._clock.monotonic()
        named = dict.fromkeys(
            [(event.account_id, strategy_in(event.text)) for event in events if event.type == "OrderAccepted"]
        )
        keys = [StrategyKey(tenant_of_account(account), name) for account, name in named if name is not None]
        new = [key for key in keys if key not in self._known and key.tenant not in self._full]
        last = events[-1]
        self._place = Place(place.epoch, last.seq, last.hash)
        if new or last.seq - self._saved.seq >= SAVED_EVENTS:
            await self._save(self._place, new)
        return len(events)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            began = self._clock.monotonic()
            count = await self.run_once()
            spent = self._clock.monotonic() - began
            await asyncio.sleep(min(PAUSES * spent, PAUSE_SECONDS_MAX) if count >= EVENTS_MAX else POLL_SECONDS)

    async def _follows(self, place: Place, events: list[JournalEvent]) -> bool:
        """Whether the journal still has the event at the place."""
        if not place.seq:
            return True
        if events:
            return link(place.hash, events[0].text) == events[0].hash
        found = await self._journal.last_event(0, place.seq)
        return (found.seq, found.hash) == (place.seq, place.hash)

    async def _save(self, place: Place, strategies: list[StrategyKey]) -> None:
        self._place = None  # until the write returns, only the registry can tell
        try:
            registered = await self._registry.register(self._saved, place, strategies, self._clock.now())
        except HistoryMismatch:
            return  # another gateway has looked through these events: go on where it is
        self._place = self._saved = place
        if len(self._known) + len(strategies) > KNOWN_MAX:
            self._known.clear()
        self._known.update(strategies)
        self._full.update(key.tenant for key in registered.left_out)
        if registered.new:
            log.info("strategies_registered", strategies=[key.strategy_id for key in registered.new], seq=place.seq)
        for account, count in Counter(key.account_id for key in registered.left_out).items():
            log.error(
                "strategies_not_registered",
                account_id=account,
                count=count,
                error=f"the account has {STRATEGIES_MAX} strategies, the maximum",
            )


def strategy_in(text: str) -> str | None:
    """The strategy that the event of an accepted order names; None if it names none.

    A search, which takes a tenth of decoding the event: in a text of a caller the quotes are escaped.
    """
    _, found, rest = text.partition('"strategy":"')
    name = rest.partition('"')[0] if found else ""
    return name if STRATEGY.fullmatch(name) else None


PAUSE_SECONDS = 60.0
# A request has up to thousands of rows and megabytes of artifacts: few at a time keep the transaction short.
BATCH = 5
BATCH_PAUSE_SECONDS = 1.0


class RecheckReaper:
    """Removes requests past their retention."""

    def __init__(self, requests: RecheckRequests, clock: Clock, retention: timedelta) -> None:
        self._requests = requests
        self._clock = clock
        self._retention = retention

    async def run_once(self) -> int:
        """Remove a few requests and return their number."""
        count = await self._requests.reap(self._clock.now() - self._retention, BATCH)
        if count:
            log.info("rechecks_removed", count=count)
        return count

    async def run(self) -> None:
        """Remove requests until cancelled."""
        while True:
            count = await self.run_once()
            await asyncio.sleep(BATCH_PAUSE_SECONDS if count == BATCH else PAUSE_SECONDS)
