"""The idempotency cache that several gateways share."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError

from switchyard.adapters.cache_tally import CacheTally
from switchyard.adapters.redis.batches import Batches
from switchyard.adapters.redis.host import Command, RedisAway, RedisHost
from switchyard.adapters.redis.scripts import FIND, FORGET, PUT
from switchyard.adapters.redis.seal import Counted, Seal, minute_of
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStats, CacheStatus
from switchyard.ports.cache_watch import CacheWatch
from switchyard.ports.clock import Clock

PREFIX = "switchyard:idem"
COUNTS = f"{PREFIX}:counts"
# Some seconds of writing at full load, about 10 MB.
QUEUE_MAX = 10_000
WRITES_AT_ONCE = 64
TALLY_EVERY = timedelta(minutes=1)
# Counts of entries that expired are kept a while for gateways whose clocks are behind.
TALLY_MINUTES_KEPT = 10

Place = tuple[AccountId, str, str]


class RedisCache:
    """ports.cache.Cache on one Redis server; lookups and writes go over connections of their own."""

    def __init__(
        self,
        host: RedisHost,
        *,
        key: bytes,
        clock: Clock,
        queue_max: int = QUEUE_MAX,
        watch: CacheWatch | None = None,
    ) -> None:
        assert queue_max > 0, "writes need a place to wait"
        self._seal = Seal(key)
        self._clock = clock
        self._reads = host.link()
        self._writes = host.link()
        self._write_seconds = host.write_seconds
        self._lookups: Batches[Place, CacheEntry | None] = Batches(self._look_up)
        self._queue_max = queue_max
        self._queue: OrderedDict[Place, CacheEntry] = OrderedDict()
        """By place, so that the newest write of a key replaces one that still waits."""
        self._wrong: set[Place] = set()
        """Where a wrong entry lies that may claim to be newer than anything we write."""
        self._has_writes = asyncio.Event()
        self._tally = CacheTally(watch)

    async def get(self, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """The entry, or none where it is absent, wrong, or not to be had in time."""
        entry = await self._lookups.ask((account, operation, key))
        self._tally.looked_up(hit=entry is not None)
        return entry

    def put(self, entry: CacheEntry) -> None:
        """Write the entry behind the answer; when too many wait, the oldest is dropped."""
        place = (entry.account_id, entry.operation, entry.idempotency_key)
        waiting = self._queue.get(place)
        if not entry.is_cacheable or (waiting is not None and waiting.precedence > entry.precedence):
            return
        self._queue[place] = entry
        if len(self._queue) > self._queue_max:
            self._queue.popitem(last=False)
            self._tally.failed("dropped")
        self._has_writes.set()

    async def forget(self, account: AccountId, operation: str, key: str) -> None:
        """Drop an entry, and a write of it that still waits."""
        place = (account, operation, key)
        self._queue.pop(place, None)
        # Over the writers' connection, behind whatever write of it is under way.
        await self._write([self._forget(place)])

    async def stats(self) -> CacheStats:
        """What all gateways keep there, to the minute; entries that the server evicted count until they expire."""
        held = await self._count()
        now = self._clock.now()
        statuses: Counter[CacheStatus] = Counter()
        oldest_minute = None
        for counted, entries in (held or {}).items():
            if counted.expires_minute >= minute_of(now) and entries > 0:
                statuses[counted.status] += entries
                oldest_minute = min(oldest_minute or counted.created_minute, counted.created_minute)
        total = sum(statuses.values())
        return CacheStats(
            is_reachable=held is not None,
            entries=total,
            active=total,
            expired=0,
            by_status=dict(statuses),
            oldest_age_seconds=None if oldest_minute is None else max(now.timestamp() - oldest_minute * 60, 0.0),
            hits=self._tally.hits,
            lookups=self._tally.lookups,
            errors=self._tally.errors,
        )

    async def run(self) -> None:
        """Write what waits, and count now and then, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_writes())
            group.create_task(self._run_counts())

    async def write_once(self) -> int:
        """Write one batch of what waits, after what is in its way; how many that were, written or lost."""
        wrong = [self._wrong.pop() for _ in range(min(len(self._wrong), WRITES_AT_ONCE))]
        batch = [self._queue.popitem(last=False) for _ in range(min(len(self._queue), WRITES_AT_ONCE))]
        puts = (self._put(place, entry) for place, entry in batch)
        commands = [*map(self._forget, wrong), *filter(None, puts)]
        if commands:
            await self._write(commands)
        return len(wrong) + len(batch)

    async def close(self) -> None:
        """Hang up; what still waits to be written is lost."""
        await self._lookups.close()
        await self._reads.close()
        await self._writes.close()

    async def _run_writes(self) -> None:
        while True:
            await self._has_writes.wait()
            self._has_writes.clear()
            while await self.write_once():
                pass

    async def _run_counts(self) -> None:
        while True:
            self._tally.holds((await self.stats()).entries)
            await asyncio.sleep(TALLY_EVERY.total_seconds())

    async def _look_up(self, places: Sequence[Place]) -> list[CacheEntry | None]:
        entries: list[CacheEntry | None] = [None] * len(places)
        try:
            (reply,) = await self._reads.ask([("EVAL_RO", FIND, len(places), *map(self._name, places))])
        except RedisAway as away:
            if away.was_asked:
                self._tally.failed("unavailable")
            return entries
        numbers = reply[::2] if isinstance(reply, list) and len(reply) % 2 == 0 else [None]
        if not all(isinstance(number, int) and 1 <= number <= len(places) for number in numbers):
            self._tally.failed("refused")
            return entries
        for number, value in zip(numbers, reply[1::2], strict=True):
            entries[number - 1] = self._opened(places[number - 1], value)
        return entries

    def _opened(self, place: Place, value: Any) -> CacheEntry | None:
        entry = self._seal.open(value, *place)
        if entry is None:
            self._tally.failed("wrong_entry")
            if len(self._wrong) < self._queue_max:
                self._wrong.add(place)
                self._has_writes.set()
            return None
        # The server's clock is not ours, and an old value can be put back by somebody else.
        return entry if entry.expires_at > self._clock.now() else None

    def _put(self, place: Place, entry: CacheEntry) -> Command | None:
        milliseconds = int((entry.expires_at - self._clock.now()) / timedelta(milliseconds=1))
        try:
            value = self._seal.close(entry)
        except ValueError:
            return None  # text that cannot be encoded, or too much of it
        return ("EVAL", PUT, 2, self._name(place), COUNTS, value, milliseconds) if milliseconds > 0 else None

    def _forget(self, place: Place) -> Command:
        return "EVAL", FORGET, 2, self._name(place), COUNTS

    async def _write(self, commands: Sequence[Command]) -> None:
        try:
            replies = await self._writes.ask(commands, seconds=self._write_seconds)
        except RedisAway as away:
            if away.was_asked:
                self._tally.failed("unavailable")
            for _ in commands:
                self._tally.failed("dropped")
            return
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._tally.failed("refused")

    async def _count(self) -> dict[Counted, int] | None:
        """What the counts say, without those of long ago; none when they are not to be had."""
        try:
            (reply,) = await self._writes.ask([("HGETALL", COUNTS)], seconds=self._write_seconds)
            found = _counts(reply)
            over_at = minute_of(self._clock.now()) - TALLY_MINUTES_KEPT
            over = [field for field, counted, _ in found if counted is None or counted.expires_minute < over_at]
            if over:
                await self._writes.ask([("HDEL", COUNTS, *over)], seconds=self._write_seconds)
        except RedisAway as away:
            if away.was_asked:
                self._tally.failed("unavailable")
            return None
        return {counted: entries for _, counted, entries in found if counted is not None}

    def _name(self, place: Place) -> str:
        return f"{PREFIX}:{self._seal.name(*place)}"


def _counts(reply: Any) -> list[tuple[bytes, Counted | None, int]]:
    """Each field with what it is about and its count; nothing at all is certain about what a server holds."""
    if not isinstance(reply, list):
        return []
    pairs = zip(reply[::2], reply[1::2], strict=False)
    return [
        (field, Counted.parse(field), int(count) if count.isdigit() else 0)
        for field, count in pairs
        if isinstance(field, bytes) and isinstance(count, bytes)
    ]
