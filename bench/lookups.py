"""Measures lookups in the idempotency cache, one at a time and concurrently."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_bytes

import uvloop

from bench.percentiles import percentile
from bench.tables import Section, below
from switchyard.adapters.memory.cache import MemoryCache
from switchyard.adapters.redis.cache import RedisCache
from switchyard.adapters.redis.host import RedisHost
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.cache import Cache, CacheEntry
from tests.support.redis import RedisServer

ENTRIES = 10_000
# As long as a response of `/do/order` with one fill.
RESPONSE = "x" * 400
AT_ONCE = (1, 64)
WARM_UP_SECONDS = 0.5
P99_MS_MAX = {"in memory": 1.0, "on Redis": 5.0}
HEADINGS = ("cache", "at once", "per second", "p50 ms", "p95 ms", "p99 ms", "lost")
OPERATION = "do/order"


@dataclass(frozen=True)
class LookupRow:
    """One line of the table; `lost` counts lookups that timed out and so missed an existing entry."""

    place: str
    at_once: int
    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    lost: int


def measure_lookups(seconds: float) -> list[LookupRow]:
    """Measure both caches; every second lookup is a hit."""
    with RedisServer() as server:
        return uvloop.run(_measure_all(server.url, seconds))


def lookup_section(rows: Sequence[LookupRow]) -> Section:
    goals = [
        below(f"{row.place}, {row.at_once} at once: p99 {row.p99_ms:.3f} ms", row.p99_ms, P99_MS_MAX[row.place])
        for row in rows
    ]
    return Section("Lookups in the idempotency cache", HEADINGS, [_cells(row) for row in rows], goals, text_columns=1)


async def _measure_all(url: str, seconds: float) -> list[LookupRow]:
    clock = SystemClock()
    memory = MemoryCache(clock=clock)
    redis = RedisCache(RedisHost(url, clock=clock), key=token_bytes(32), clock=clock)
    rows = []
    for place, cache, flush in (("in memory", memory, _no_writes), ("on Redis", redis, redis.write_once)):
        await _fill(cache, flush)
        for at_once in AT_ONCE:
            await _look_up(cache, at_once, WARM_UP_SECONDS)
            started = time.perf_counter()
            took_ms, lost = await _look_up(cache, at_once, seconds)
            rate = len(took_ms) / (time.perf_counter() - started)
            percentiles = statistics.median(took_ms), percentile(took_ms, 95), percentile(took_ms, 99)
            rows.append(LookupRow(place, at_once, rate, *percentiles, lost))
    await redis.close()
    return rows


async def _fill(cache: Cache, flush: Callable[[], Awaitable[int]]) -> None:
    now = SystemClock().now()
    for number in range(ENTRIES):
        cache.put(
            CacheEntry(
                account_id=AccountId("bench"),
                operation=OPERATION,
                idempotency_key=str(number),
                generation=0,
                request_digest="0" * 64,
                order_id=OrderId(f"ord_{number}"),
                status="completed",
                http_status=201,
                response=RESPONSE,
                created_at=now,
                expires_at=now + timedelta(hours=1),
            )
        )
    while await flush():
        pass


async def _look_up(cache: Cache, at_once: int, seconds: float) -> tuple[list[float], int]:
    """Return the duration of each lookup in milliseconds, and the number of lookups that missed an existing entry."""
    account = AccountId("bench")
    # Every second number has no entry.
    numbers: Iterator[int] = itertools.cycle(
        number for pair in zip(range(ENTRIES), range(ENTRIES, 2 * ENTRIES), strict=True) for number in pair
    )
    took_ms: list[float] = []
    lost = 0
    ends_at = time.perf_counter() + seconds

    async def keep_looking_up() -> None:
        nonlocal lost
        started = time.perf_counter()
        while started < ends_at:
            number = next(numbers)
            entry = await cache.get(account, OPERATION, str(number))
            ended = time.perf_counter()
            took_ms.append((ended - started) * 1e3)
            lost += entry is None and number < ENTRIES
            # A lookup in memory does not yield to the event loop by itself.
            await asyncio.sleep(0)
            started = time.perf_counter()

    await asyncio.gather(*(keep_looking_up() for _ in range(at_once)))
    return took_ms, lost


async def _no_writes() -> int:
    return 0


def _cells(row: LookupRow) -> tuple[str, ...]:
    times = (f"{ms:,.3f}" for ms in (row.p50_ms, row.p95_ms, row.p99_ms))
    return row.place, str(row.at_once), f"{row.per_second:,.0f}", *times, str(row.lost)
