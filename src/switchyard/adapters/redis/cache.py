"""The idempotency cache on Redis, shared by several gateways.

Lookups are batched; writes are queued and sent in the background by `run`. Every failure is a miss or a lost write,
counted in the metrics: the key store in SQL remains the authority.
"""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError

from switchyard.adapters.cache_tally import CacheTally
from switchyard.adapters.redis.host import Batches, Command, RedisHost, RedisUnavailable
from switchyard.adapters.redis.scripts import FIND, FORGET, LAST_LENGTH, PUT, CountBucket, Seal, minute_of
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStats, CacheStatus, CacheWatch
from switchyard.ports.clock import Clock

PREFIX = "switchyard:idem"
COUNTS = f"{PREFIX}:counts"
# A few seconds of writes at full load, about 10 MB.
QUEUE_MAX = 10_000
WRITES_AT_ONCE = 64
TALLY_EVERY = timedelta(minutes=1)
# Counts of expired entries are kept this long, because the clock of another gateway may be behind.
TALLY_MINUTES_KEPT = 10

_USED_MEMORY = re.compile(r"^used_memory:([0-9]{1,18})\r?$", re.MULTILINE)

# Account, operation and idempotency key of an entry.
EntryKey = tuple[AccountId, str, str]


class RedisCache:
    """ports.cache.Cache on one Redis server; lookups and writes use separate connections."""

    def __init__(
        self,
        host: RedisHost,
        *,
        key: bytes,
        clock: Clock,
        queue_max: int = QUEUE_MAX,
        watch: CacheWatch | None = None,
    ) -> None:
        assert queue_max > 0, "queue_max must be at least 1"
        self._seal = Seal(key)
        self._clock = clock
        self._reads = host.link()
        self._writes = host.link()
        self._write_seconds = host.write_seconds
        self._lookups: Batches[EntryKey, CacheEntry | None] = Batches(self._look_up)
        self._queue_max = queue_max
        self._queue: OrderedDict[EntryKey, CacheEntry] = OrderedDict()
        """Waiting writes by key: a newer write of the same key replaces the waiting one."""
        self._invalid: set[EntryKey] = set()
        """Keys whose stored value is invalid. It is deleted before a write: its head may claim a higher precedence."""
        self._has_writes = asyncio.Event()
        self._tally = CacheTally(watch)

    async def get(self, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """Return the entry, or None if it is absent, invalid or not available in time."""
        entry = await self._lookups.ask((account, operation, key))
        self._tally.looked_up(hit=entry is not None)
        return entry

    def put(self, entry: CacheEntry) -> None:
        """Queue the entry for a background write; a full queue drops its oldest write."""
        entry_key = (entry.account_id, entry.operation, entry.idempotency_key)
        waiting = self._queue.get(entry_key)
        if not entry.is_cacheable or (waiting is not None and waiting.precedence > entry.precedence):
            return
        self._queue[entry_key] = entry
        if len(self._queue) > self._queue_max:
            self._queue.popitem(last=False)
            self._tally.failed("dropped")
        self._has_writes.set()

    async def forget(self, account: AccountId, operation: str, key: str) -> None:
        """Delete an entry and any waiting write of it."""
        entry_key = (account, operation, key)
        self._queue.pop(entry_key, None)
        # On the write connection, so that it comes after a write of the same entry that is in flight.
        await self._write([(self._forget(entry_key), 1)])

    async def stats(self) -> CacheStats:
        """Count the entries of all gateways, to the minute; an entry that Redis evicted counts until it expires."""
        counts = await self._count()
        memory_bytes = None if counts is None else await self._memory_bytes()
        now = self._clock.now()
        statuses: Counter[CacheStatus] = Counter()
        oldest_minute = None
        for bucket, entries in (counts or {}).items():
            if bucket.expires_minute >= minute_of(now) and entries > 0:
                statuses[bucket.status] += entries
                oldest_minute = min(oldest_minute or bucket.created_minute, bucket.created_minute)
        total = sum(statuses.values())
        if counts is not None:
            self._tally.holds(total)
        return CacheStats(
            is_reachable=counts is not None,
            entries=total,
            active=total,
            expired=0,
            by_status=dict(statuses),
            oldest_age_seconds=None if oldest_minute is None else max(now.timestamp() - oldest_minute * 60, 0.0),
            hits=self._tally.hits,
            lookups=self._tally.lookups,
            errors=self._tally.errors,
            memory_bytes=memory_bytes,
        )

    async def run(self) -> None:
        """Send queued writes and update the entry count every minute, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_writes())
            group.create_task(self._run_counts())

    async def write_once(self) -> int:
        """Delete invalid values and send one batch of queued writes; returns how many, lost ones included."""
        invalid = [self._invalid.pop() for _ in range(min(len(self._invalid), WRITES_AT_ONCE))]
        batch = [self._queue.popitem(last=False) for _ in range(min(len(self._queue), WRITES_AT_ONCE))]
        puts = [put for entry_key, entry in batch if (put := self._put(entry_key, entry)) is not None]
        # The entries that each command writes or deletes. All are sent at once: a key that is found invalid meanwhile
        # must not be written by this batch and deleted by the next.
        commands = [(self._forget(entry_key), 1) for entry_key in invalid]
        if puts:
            names = [name for name, _, _ in puts]
            values = [part for _, value, milliseconds in puts for part in (value, milliseconds)]
            commands.append((("EVAL", PUT, 1 + len(puts), COUNTS, *names, *values), len(puts)))
        if commands:
            replies = await self._write(commands)
            if puts and replies and isinstance(refused := replies[-1], int):
                self._tally.failed("refused", times=min(refused, len(puts)))
        return len(invalid) + len(batch)

    async def close(self) -> None:
        """Close the connections; queued writes are lost."""
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
            await self.stats()
            await asyncio.sleep(TALLY_EVERY.total_seconds())

    async def _look_up(self, entry_keys: Sequence[EntryKey]) -> list[CacheEntry | None]:
        entries: list[CacheEntry | None] = [None] * len(entry_keys)
        try:
            now = f"{int(self._clock.now().timestamp() * 1000):0{LAST_LENGTH}d}"
            (reply,) = await self._reads.ask([("EVAL", FIND, len(entry_keys), *map(self._name, entry_keys), now)])
        except RedisUnavailable as error:
            if error.attempted:
                self._tally.failed("unavailable")
            return entries
        numbers = reply[::2] if isinstance(reply, list) and len(reply) % 2 == 0 else [None]
        if not all(isinstance(number, int) and 1 <= number <= len(entry_keys) for number in numbers):
            self._tally.failed("refused")
            return entries
        for number, value in zip(numbers, reply[1::2], strict=True):
            entries[number - 1] = self._opened(entry_keys[number - 1], value)
        return entries

    def _opened(self, entry_key: EntryKey, value: Any) -> CacheEntry | None:
        entry = self._seal.open(value, *entry_key)
        if entry is None:
            self._tally.failed("wrong_entry")
            if len(self._invalid) < self._queue_max:
                self._invalid.add(entry_key)
                self._has_writes.set()
            return None
        # Checked here too: the server's clock may differ, and another client may restore an old value.
        return entry if entry.expires_at > self._clock.now() else None

    def _put(self, entry_key: EntryKey, entry: CacheEntry) -> tuple[str, bytes, int] | None:
        """Return name, value and time to live of the entry; None if it cannot be stored or has expired."""
        milliseconds = int((entry.expires_at - self._clock.now()) / timedelta(milliseconds=1))
        try:
            value = self._seal.close(entry)
        except ValueError:
            return None  # text that UTF-8 cannot encode, or an entry that is too large
        return (self._name(entry_key), value, milliseconds) if milliseconds > 0 else None

    def _forget(self, entry_key: EntryKey) -> Command:
        return "EVAL", FORGET, 2, self._name(entry_key), COUNTS

    async def _write(self, commands: Sequence[tuple[Command, int]]) -> list[Any]:
        """Send commands, each with how many entries it is about, and count what is lost; returns the replies."""
        try:
            replies = await self._writes.ask([command for command, _ in commands], seconds=self._write_seconds)
        except RedisUnavailable as error:
            if error.attempted:
                self._tally.failed("unavailable")
            self._tally.failed("dropped", times=sum(entries for _, entries in commands))
            return []
        for (_, entries), reply in zip(commands, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._tally.failed("refused", times=entries)
        return replies

    async def _count(self) -> dict[CountBucket, int] | None:
        """Read the counts and delete those of entries that expired long ago; None if Redis is unavailable."""
        try:
            (reply,) = await self._writes.ask([("HGETALL", COUNTS)], seconds=self._write_seconds)
            counts = _counts(reply)
            oldest_minute = minute_of(self._clock.now()) - TALLY_MINUTES_KEPT
            stale = [field for field, bucket, _ in counts if bucket is None or bucket.expires_minute < oldest_minute]
            if stale:
                await self._writes.ask([("HDEL", COUNTS, *stale)], seconds=self._write_seconds)
        except RedisUnavailable as error:
            if error.attempted:
                self._tally.failed("unavailable")
            return None
        return {bucket: entries for _, bucket, entries in counts if bucket is not None}

    async def _memory_bytes(self) -> int | None:
        try:
            (reply,) = await self._writes.ask([("INFO", "memory")], seconds=self._write_seconds)
        except RedisUnavailable:
            return None
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
        found = _USED_MEMORY.search(text) if isinstance(text, str) else None
        return None if found is None else int(found[1])

    def _name(self, entry_key: EntryKey) -> str:
        return f"{PREFIX}:{self._seal.name(*entry_key)}"


def _counts(reply: Any) -> list[tuple[bytes, CountBucket | None, int]]:
    """Return each field with its bucket and count; other clients may have written anything, so nothing is assumed."""
    if not isinstance(reply, list):
        return []
    pairs = zip(reply[::2], reply[1::2], strict=False)
    return [
        (field, CountBucket.parse(field), int(count) if count.isdigit() else 0)
        for field, count in pairs
        if isinstance(field, bytes) and isinstance(count, bytes)
    ]
