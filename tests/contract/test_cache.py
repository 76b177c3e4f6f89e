"""What every idempotency cache keeps to: it may miss, but it never says anything untrue."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from switchyard.adapters.memory.cache import STEP, MemoryCache
from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import RESPONSE_BYTES_MAX, CacheEntry, CacheStatus
from tests.support.cache import CacheHouse, Watched, a_cache_entry

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
# What a key, an account or an operation may contain, and what could be taken for structure.
ODD = ("", " ", ":", "a:b", "*", "{x}", "\0", "\r\n", '"', "円", "\ud800", "../..", "x" * 255)


@pytest.fixture(params=["memory", "redis"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[CacheHouse]:
    server = None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.flush()
    house = CacheHouse(server)
    yield house
    await house.close()


async def test_what_was_put_is_found_whole(house: CacheHouse) -> None:
    entry = a_cache_entry("k", request_id="req-1", http_status=201, response='{"status":"filled","note":"円 \\" "}')
    await house.put(entry)
    assert await house.get("k") == entry


async def test_what_was_never_put_is_a_miss(house: CacheHouse) -> None:
    assert await house.get("k") is None


async def test_an_entry_is_there_until_its_time_and_then_no_more(house: CacheHouse) -> None:
    await house.put(a_cache_entry("k", ttl=HOUR))
    house.clock.advance(HOUR - timedelta(milliseconds=1))
    assert await house.get("k") is not None
    house.clock.advance(timedelta(milliseconds=1))
    assert await house.get("k") is None


async def test_an_entry_that_has_already_expired_is_not_kept(house: CacheHouse) -> None:
    await house.put(a_cache_entry("k", ttl=timedelta()))
    assert await house.get("k") is None


async def test_reading_does_not_prolong(house: CacheHouse) -> None:
    await house.put(a_cache_entry("k", ttl=HOUR))
    for _ in range(60):
        assert await house.get("k") is not None
        house.clock.advance(MINUTE)
    assert await house.get("k") is None


LATER = START + timedelta(microseconds=1)
PRECEDENCE: list[tuple[int, CacheStatus, bool]] = [
    # (generation, status, whether the entry is the later one of two moments), each line later than the one before
    (0, "pending", False),
    (0, "submitted", False),
    (0, "completed", False),
    (0, "pending", True),
    (0, "failed", True),
    (1, "pending", False),
    (2, "completed", False),
    (10, "pending", False),
]


def ranked(place: int) -> CacheEntry:
    generation, status, is_later = PRECEDENCE[place]
    created_at = LATER if is_later else START
    return a_cache_entry("k", generation=generation, status=status, created_at=created_at, order=f"ord_{place}")


@pytest.mark.parametrize("place", range(1, len(PRECEDENCE)))
async def test_an_older_write_never_replaces_a_newer_one_and_a_newer_always_does(house: CacheHouse, place: int) -> None:
    slow = house.another()
    older, newer = ranked(place - 1), ranked(place)
    await house.put(older)
    await house.put(newer)
    assert await house.get("k") == newer
    await house.put(older, cache=slow)
    assert await house.get("k") == newer


async def test_of_writes_that_still_wait_the_newest_is_kept(house: CacheHouse) -> None:
    await house.put(ranked(2), ranked(5), ranked(1))
    assert await house.get("k") == ranked(5)


async def test_of_equal_rank_the_last_write_stays(house: CacheHouse) -> None:
    one, other = a_cache_entry("k", response="one"), a_cache_entry("k", response="other")
    await house.put(one)
    await house.put(other)
    assert await house.get("k") == other


async def test_the_same_key_of_another_account_or_operation_is_another_entry(house: CacheHouse) -> None:
    entries = [
        a_cache_entry("k", account=account, operation=operation, order=f"{account}-{operation}")
        for account in ("a", "b")
        for operation in ("orders", "do/order")
    ]
    await house.put(*entries)
    for entry in entries:
        assert await house.get("k", account=entry.account_id, operation=entry.operation) == entry
    await house.forget("k", account="a", operation="orders")
    found = [await house.get("k", account=entry.account_id, operation=entry.operation) for entry in entries]
    assert found == [None, *entries[1:]]


async def test_whatever_characters_there_are_no_two_places_meet(house: CacheHouse) -> None:
    places = [(account, operation, key) for account in ODD[:4] for operation in ODD[:4] for key in ODD]
    await house.put(*(a_cache_entry(k, account=a, operation=o, order=f"ord_{n}") for n, (a, o, k) in enumerate(places)))
    for number, (account, operation, key) in enumerate(places):
        entry = await house.get(key, account=account, operation=operation)
        # Text that no encoding knows need not be kept.
        assert (entry is None and "\ud800" in key) or (entry is not None and entry.order_id == f"ord_{number}")


async def test_forgetting_also_stops_a_write_that_still_waits(house: CacheHouse) -> None:
    house.cache.put(a_cache_entry("k"))
    await house.forget("k")
    await house.settled()
    assert await house.get("k") is None
    await house.forget("never there")


async def test_what_was_forgotten_can_be_put_again(house: CacheHouse) -> None:
    await house.put(a_cache_entry("k", generation=7))
    await house.forget("k")
    again = a_cache_entry("k", generation=0)
    await house.put(again)
    assert await house.get("k") == again


@pytest.mark.parametrize("character", ["x", "円"])
async def test_a_huge_response_is_not_kept_and_a_large_one_is(house: CacheHouse, character: str) -> None:
    largest = character * (RESPONSE_BYTES_MAX // len(character.encode()))
    await house.put(a_cache_entry("large", response=largest), a_cache_entry("huge", response=largest + character))
    assert await house.get("huge") is None
    found = await house.get("large")
    assert found is not None and found.response == largest


async def test_the_hit_rate_is_hits_per_lookup(house: CacheHouse) -> None:
    assert (await house.cache.stats()).hit_rate == 0
    await house.put(a_cache_entry("k"))
    for _ in range(999):
        assert await house.get("k") is not None
    assert await house.get("other") is None
    stats = await house.cache.stats()
    assert (stats.hits, stats.lookups, stats.hit_rate, stats.errors) == (999, 1000, 0.999, 0)
    assert (house.watched.hits, house.watched.misses, house.watched.errors) == (999, 1, {})


async def test_statistics_count_each_entry_once_under_what_it_is_now(house: CacheHouse) -> None:
    await house.put(*(a_cache_entry(f"p{n}", status="pending") for n in range(3)))
    house.clock.advance(10 * MINUTE)
    now = house.clock.now()
    await house.put(*(a_cache_entry(f"c{n}", status="completed", created_at=now, ttl=2 * HOUR) for n in range(4)))
    await house.put(a_cache_entry("p0", status="completed"))  # the same generation, one stage on
    await house.put(a_cache_entry("p0", status="pending"))  # too late
    await house.put(a_cache_entry("p1", status="failed", created_at=now, generation=1))
    await house.forget("c0")
    await house.forget("c0")
    stats = await house.cache.stats()
    assert stats.is_reachable
    assert (stats.entries, stats.active, stats.expired) == (6, 6, 0)
    assert stats.by_status == {"pending": 1, "completed": 4, "failed": 1}
    assert stats.oldest_age_seconds is not None
    assert 600 <= stats.oldest_age_seconds < 660


async def test_statistics_of_an_empty_cache_say_so(house: CacheHouse) -> None:
    stats = await house.cache.stats()
    assert (stats.entries, stats.by_status, stats.oldest_age_seconds, stats.hit_rate) == (0, {}, None, 0.0)


async def test_what_has_expired_is_not_counted_as_active(house: CacheHouse) -> None:
    await house.put(a_cache_entry("short", ttl=HOUR), a_cache_entry("long", ttl=2 * HOUR))
    house.clock.advance(HOUR + MINUTE)
    assert (await house.cache.stats()).active == 1


async def test_a_thousand_puts_and_gets_at_once_from_two_gateways_only_ever_tell_the_truth(house: CacheHouse) -> None:
    caches = [house.cache, house.another()]
    entries = [a_cache_entry(f"k{n % 250}", generation=n // 250, order=f"ord_{n}") for n in range(1000)]

    async def put_and_get(number: int, entry: CacheEntry) -> None:
        writer, reader = caches[number % 2], caches[(number // 2) % 2]
        writer.put(entry)
        await asyncio.sleep(0)
        found = await reader.get(entry.account_id, entry.operation, entry.idempotency_key)
        assert found is None or found in entries[int(entry.idempotency_key[1:]) :: 250]

    running = [asyncio.create_task(cache.run()) for cache in caches]
    await asyncio.gather(*(put_and_get(number, entry) for number, entry in enumerate(entries)))
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    await house.put(*entries[750:])
    for entry in entries[750:]:
        for cache in caches:
            assert await cache.get(entry.account_id, entry.operation, entry.idempotency_key) == entry
    assert (await house.cache.stats()).entries == 250
    assert house.watched.errors == {}


async def test_in_memory_the_least_recently_used_entry_makes_room() -> None:
    watched = Watched()
    cache = MemoryCache(clock=ManualClock(), entries_max=3, watch=watched)
    for key in "abc":
        cache.put(a_cache_entry(key))
    assert await cache.get(AccountId("acc-1"), "do/order", "a") is not None
    cache.put(a_cache_entry("d"))
    found = [await cache.get(AccountId("acc-1"), "do/order", key) is not None for key in "abcd"]
    assert found == [True, False, True, True]
    for number in range(1000):
        cache.put(a_cache_entry(str(number)))
    assert (await cache.stats()).entries == watched.size == 3


async def test_in_memory_cleaning_removes_exactly_what_has_expired_and_lets_others_work_meanwhile() -> None:
    clock, watched = ManualClock(), Watched()
    cache = MemoryCache(clock=clock, watch=watched)
    for number in range(5 * STEP):
        cache.put(a_cache_entry(str(number), ttl=HOUR if number % 2 else 2 * HOUR))
    clock.advance(HOUR)
    before = await cache.stats()
    assert (before.entries, before.active, before.expired) == (5 * STEP, 2.5 * STEP, 2.5 * STEP)

    cleaning = asyncio.create_task(cache.clean_once())
    await asyncio.sleep(0)
    # One step was made; a request comes in between and renews what the cleaning is about to look at.
    assert not cleaning.done()
    renewed = a_cache_entry(str(5 * STEP - 1), generation=1, created_at=clock.now())
    cache.put(renewed)
    assert await cleaning == 2.5 * STEP - 1
    after = await cache.stats()
    assert (after.entries, after.active, after.expired, watched.size) == (
        2.5 * STEP + 1,
        after.entries,
        0,
        after.entries,
    )
    assert await cache.get(renewed.account_id, renewed.operation, renewed.idempotency_key) == renewed


async def test_in_memory_a_lookup_waits_for_nothing() -> None:
    cache = MemoryCache(clock=ManualClock())
    cache.put(a_cache_entry("k"))
    for key in ("k", "absent"):
        lookup = cache.get(AccountId("acc-1"), "do/order", key)
        with pytest.raises(StopIteration):
            lookup.send(None)
