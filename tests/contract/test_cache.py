"""The contract of `Cache`, in memory and on Redis: it may miss, but never returns a wrong or outdated entry."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from switchyard.adapters.memory.cache import STEP, MemoryCache
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import RESPONSE_BYTES_MAX, CacheEntry, CacheStatus
from tests.support.cache import CountingWatch, GatewayCaches, a_cache_entry, as_put
from tests.support.memory.clock import START, ManualClock

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
# Characters that could be taken for separators, patterns or ends of text.
ODD = ("", " ", ":", "a:b", "*", "{x}", "\0", "\r\n", '"', "円", "\ud800", "../..", "x" * 255)


@pytest.fixture(params=["memory", "redis"])
async def caches(request: pytest.FixtureRequest) -> AsyncIterator[GatewayCaches]:
    server = None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.flush()
    caches = GatewayCaches(server)
    yield caches
    await caches.close()


async def test_an_entry_is_returned_as_it_was_put(caches: GatewayCaches) -> None:
    entry = a_cache_entry("k", request_id="req-1", http_status=201, response='{"status":"filled","note":"円 \\" "}')
    await caches.put(entry)
    assert await caches.get("k") == entry


async def test_an_unknown_key_is_a_miss(caches: GatewayCaches) -> None:
    assert await caches.get("k") is None


async def test_an_entry_is_returned_until_it_expires(caches: GatewayCaches) -> None:
    await caches.put(a_cache_entry("k", ttl=HOUR))
    caches.clock.advance(HOUR - timedelta(milliseconds=1))
    assert await caches.get("k") is not None
    caches.clock.advance(timedelta(milliseconds=1))
    assert await caches.get("k") is None


async def test_an_expired_entry_is_not_stored(caches: GatewayCaches) -> None:
    await caches.put(a_cache_entry("k", ttl=timedelta()))
    assert await caches.get("k") is None


async def test_a_lookup_does_not_extend_the_expiry(caches: GatewayCaches) -> None:
    await caches.put(a_cache_entry("k", ttl=HOUR))
    for _ in range(60):
        assert await caches.get("k") is not None
        caches.clock.advance(MINUTE)
    assert await caches.get("k") is None


async def test_an_entry_has_the_lookups_of_all_gateways_that_found_it(caches: GatewayCaches) -> None:
    entry = a_cache_entry("k", status="failed", error="BROKER_DOWN")
    await caches.put(entry)
    gateways = [caches.cache, caches.add_gateway()]
    for number, gateway in enumerate([*gateways, *gateways], start=1):
        caches.clock.advance(MINUTE)
        found = await gateway.get(entry.account_id, entry.operation, "k")
        assert found is not None
        assert (found.access_count, found.last_accessed, found.error) == (number, caches.clock.now(), "BROKER_DOWN")
    await caches.put(entry)
    found = await caches.cache.get(entry.account_id, entry.operation, "k")
    assert found is not None and found.access_count == 1, "a new entry has its own lookups"


async def test_the_size_is_that_of_the_last_count(caches: GatewayCaches) -> None:
    await caches.put(*(a_cache_entry(str(number)) for number in range(3)))
    assert (await caches.cache.stats()).entries == caches.watch.size == 3


LATER = START + timedelta(microseconds=1)
PRECEDENCE: list[tuple[int, CacheStatus, bool]] = [
    # (generation, status, whether it was created at LATER), in ascending precedence
    (0, "pending", False),
    (0, "submitted", False),
    (0, "completed", False),
    (0, "pending", True),
    (0, "failed", True),
    (1, "pending", False),
    (2, "completed", False),
    (10, "pending", False),
]


def entry_of_rank(rank: int) -> CacheEntry:
    generation, status, is_later = PRECEDENCE[rank]
    created_at = LATER if is_later else START
    return a_cache_entry("k", generation=generation, status=status, created_at=created_at, order=f"ord_{rank}")


@pytest.mark.parametrize("rank", range(1, len(PRECEDENCE)))
async def test_an_entry_is_replaced_by_newer_ones_only(caches: GatewayCaches, rank: int) -> None:
    late = caches.add_gateway()
    older, newer = entry_of_rank(rank - 1), entry_of_rank(rank)
    await caches.put(older)
    await caches.put(newer)
    assert await caches.get("k") == newer
    await caches.put(older, cache=late)
    assert await caches.get("k") == newer


async def test_the_newest_of_several_queued_writes_is_stored(caches: GatewayCaches) -> None:
    await caches.put(entry_of_rank(2), entry_of_rank(5), entry_of_rank(1))
    assert await caches.get("k") == entry_of_rank(5)


async def test_the_last_of_several_writes_of_equal_precedence_is_stored(caches: GatewayCaches) -> None:
    one, other = a_cache_entry("k", response="one"), a_cache_entry("k", response="other")
    await caches.put(one)
    await caches.put(other)
    assert await caches.get("k") == other


async def test_accounts_and_operations_have_separate_keys(caches: GatewayCaches) -> None:
    entries = [
        a_cache_entry("k", account=account, operation=operation, order=f"{account}-{operation}")
        for account in ("a", "b")
        for operation in ("orders", "do/order")
    ]
    await caches.put(*entries)
    for entry in entries:
        assert await caches.get("k", account=entry.account_id, operation=entry.operation) == entry
    await caches.forget("k", account="a", operation="orders")
    remaining = [await caches.get("k", account=entry.account_id, operation=entry.operation) for entry in entries]
    assert remaining == [None, *entries[1:]]


async def test_no_two_keys_collide_whatever_characters_they_contain(caches: GatewayCaches) -> None:
    keys = [(account, operation, key) for account in ODD[:4] for operation in ODD[:4] for key in ODD]
    await caches.put(*(a_cache_entry(k, account=a, operation=o, order=f"ord_{n}") for n, (a, o, k) in enumerate(keys)))
    for number, (account, operation, key) in enumerate(keys):
        entry = await caches.get(key, account=account, operation=operation)
        # A key with half a surrogate pair cannot be encoded and need not be stored.
        assert (entry is None and "\ud800" in key) or (entry is not None and entry.order_id == f"ord_{number}")


async def test_forget_also_removes_a_queued_write(caches: GatewayCaches) -> None:
    caches.cache.put(a_cache_entry("k"))
    await caches.forget("k")
    await caches.write_queues()
    assert await caches.get("k") is None
    await caches.forget("never there")


async def test_a_forgotten_key_can_be_put_again(caches: GatewayCaches) -> None:
    await caches.put(a_cache_entry("k", generation=7))
    await caches.forget("k")
    again = a_cache_entry("k", generation=0)
    await caches.put(again)
    assert await caches.get("k") == again


@pytest.mark.parametrize("character", ["x", "円"])
async def test_a_response_above_the_limit_is_not_stored(caches: GatewayCaches, character: str) -> None:
    largest = character * (RESPONSE_BYTES_MAX // len(character.encode()))
    await caches.put(a_cache_entry("large", response=largest), a_cache_entry("huge", response=largest + character))
    assert await caches.get("huge") is None
    found = await caches.get("large")
    assert found is not None and found.response == largest


async def test_the_hit_rate_is_hits_divided_by_lookups(caches: GatewayCaches) -> None:
    assert (await caches.cache.stats()).hit_rate == 0
    await caches.put(a_cache_entry("k"))
    for _ in range(999):
        assert await caches.get("k") is not None
    assert await caches.get("other") is None
    stats = await caches.cache.stats()
    assert (stats.hits, stats.lookups, stats.hit_rate, stats.errors) == (999, 1000, 0.999, 0)
    assert (caches.watch.hits, caches.watch.misses, caches.watch.errors) == (999, 1, {})


async def test_statistics_count_each_entry_under_its_current_status(caches: GatewayCaches) -> None:
    await caches.put(*(a_cache_entry(f"p{n}", status="pending") for n in range(3)))
    caches.clock.advance(10 * MINUTE)
    now = caches.clock.now()
    await caches.put(*(a_cache_entry(f"c{n}", status="completed", created_at=now, ttl=2 * HOUR) for n in range(4)))
    await caches.put(a_cache_entry("p0", status="completed"))  # the same generation, a later status
    await caches.put(a_cache_entry("p0", status="pending"))  # an older write
    await caches.put(a_cache_entry("p1", status="failed", created_at=now, generation=1))
    await caches.forget("c0")
    await caches.forget("c0")
    stats = await caches.cache.stats()
    assert stats.is_reachable
    assert (stats.entries, stats.active, stats.expired) == (6, 6, 0)
    assert stats.by_status == {"pending": 1, "completed": 4, "failed": 1}
    assert stats.oldest_age_seconds is not None
    assert 600 <= stats.oldest_age_seconds < 660


async def test_statistics_of_an_empty_cache_are_zero(caches: GatewayCaches) -> None:
    stats = await caches.cache.stats()
    assert (stats.entries, stats.by_status, stats.oldest_age_seconds, stats.hit_rate) == (0, {}, None, 0.0)


async def test_expired_entries_are_not_active(caches: GatewayCaches) -> None:
    await caches.put(a_cache_entry("short", ttl=HOUR), a_cache_entry("long", ttl=2 * HOUR))
    caches.clock.advance(HOUR + MINUTE)
    assert (await caches.cache.stats()).active == 1


async def test_a_thousand_concurrent_puts_and_gets_of_two_gateways_return_correct_entries(
    caches: GatewayCaches,
) -> None:
    gateways = [caches.cache, caches.add_gateway()]
    entries = [a_cache_entry(f"k{n % 250}", generation=n // 250, order=f"ord_{n}") for n in range(1000)]

    async def put_and_get(number: int, entry: CacheEntry) -> None:
        writer, reader = gateways[number % 2], gateways[(number // 2) % 2]
        writer.put(entry)
        await asyncio.sleep(0)
        found = as_put(await reader.get(entry.account_id, entry.operation, entry.idempotency_key))
        assert found is None or found in entries[int(entry.idempotency_key[1:]) :: 250]

    running = [asyncio.create_task(cache.run()) for cache in gateways]
    await asyncio.gather(*(put_and_get(number, entry) for number, entry in enumerate(entries)))
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    await caches.put(*entries[750:])
    for entry in entries[750:]:
        for cache in gateways:
            assert as_put(await cache.get(entry.account_id, entry.operation, entry.idempotency_key)) == entry
    assert (await caches.cache.stats()).entries == 250
    assert caches.watch.errors == {}


async def test_memory_removes_the_least_recently_used_entry_when_it_is_full() -> None:
    watch = CountingWatch()
    cache = MemoryCache(clock=ManualClock(), entries_max=3, watch=watch)
    for key in "abc":
        cache.put(a_cache_entry(key))
    assert await cache.get(AccountId("acc-1"), "do/order", "a") is not None
    cache.put(a_cache_entry("d"))
    found = [await cache.get(AccountId("acc-1"), "do/order", key) is not None for key in "abcd"]
    assert found == [True, False, True, True]
    for number in range(1000):
        cache.put(a_cache_entry(str(number)))
    assert (await cache.stats()).entries == watch.size == 3


async def test_memory_cleaning_removes_expired_entries_and_lets_requests_run_between_steps() -> None:
    clock, watch = ManualClock(), CountingWatch()
    cache = MemoryCache(clock=clock, watch=watch)
    for number in range(5 * STEP):
        cache.put(a_cache_entry(str(number), ttl=HOUR if number % 2 else 2 * HOUR))
    clock.advance(HOUR)
    before = await cache.stats()
    assert (before.entries, before.active, before.expired) == (5 * STEP, 2.5 * STEP, 2.5 * STEP)

    cleaning = asyncio.create_task(cache.clean_once())
    await asyncio.sleep(0)
    # After the first step a request replaces an entry that the cleaning has not checked yet.
    assert not cleaning.done()
    renewed = a_cache_entry(str(5 * STEP - 1), generation=1, created_at=clock.now())
    cache.put(renewed)
    assert await cleaning == 2.5 * STEP - 1
    after = await cache.stats()
    assert (after.entries, after.active, after.expired, watch.size) == (
        2.5 * STEP + 1,
        after.entries,
        0,
        after.entries,
    )
    assert as_put(await cache.get(renewed.account_id, renewed.operation, renewed.idempotency_key)) == renewed


async def test_a_memory_lookup_does_not_wait() -> None:
    cache = MemoryCache(clock=ManualClock())
    cache.put(a_cache_entry("k"))
    for key in ("k", "absent"):
        lookup = cache.get(AccountId("acc-1"), "do/order", key)
        with pytest.raises(StopIteration):
            lookup.send(None)
