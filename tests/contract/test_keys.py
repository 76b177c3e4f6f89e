"""The contract of `KeyStore`, on every engine."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from switchyard.domain.decisions import request_cancel
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.changes import Change, Conflict
from switchyard.domain.orders.keys import PLACE_ORDER, KeyEntry
from tests.support.build import ACCOUNT, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START

LONG_AFTER = START + timedelta(days=400)


def entry_of(change: Change) -> KeyEntry:
    return change.keys[0]


def canceled(accepted: Change) -> Change:
    change = request_cancel(state_after(accepted), START)
    assert change is not None
    return change


async def test_an_entry_is_found_by_account_operation_and_key(database: Database) -> None:
    accepted = an_accept(key="one")
    await commit(database.journal, accepted)
    assert await database.keys.entry(ACCOUNT, PLACE_ORDER, "one") == entry_of(accepted)
    assert await database.keys.entry(AccountId("other"), PLACE_ORDER, "one") is None
    assert await database.keys.entry(ACCOUNT, "do.order", "one") is None
    assert await database.keys.entry(ACCOUNT, PLACE_ORDER, "two") is None


async def test_lookups_at_the_same_time_get_their_own_entries(database: Database) -> None:
    accepted = {name: an_accept(key=name) for name in ("one", "two", "three")}
    for change in accepted.values():
        await commit(database.journal, change)
    given_up = asyncio.create_task(database.keys.entry(ACCOUNT, PLACE_ORDER, "one"))
    names = [*accepted, "none", *accepted]
    lookups = asyncio.gather(*(database.keys.entry(ACCOUNT, PLACE_ORDER, name) for name in names))
    await asyncio.sleep(0)
    given_up.cancel()
    found = await lookups
    assert found == [entry_of(accepted[name]) if name in accepted else None for name in names]


async def test_a_result_is_stored_with_its_key_and_once(database: Database) -> None:
    accepted = an_accept(key="one")
    await commit(database.journal, accepted)
    result = msgspec.structs.replace(
        entry_of(accepted),
        status="succeeded",
        http_status=200,
        response_payload_json='{"status":"filled","note":"日本 \\" \\\\"}',
        result_digest="sha256:ab",
        version=2,
    )
    await commit(database.journal, Change(keys=(result,)))
    assert await database.keys.entry(ACCOUNT, PLACE_ORDER, "one") == result
    again = await database.journal.append(0, "late", [Change(keys=(result,))], START)
    assert again == [Conflict(result)]


async def test_reap_removes_expired_keys_of_final_orders(database: Database) -> None:
    live, done, fresh = an_accept(key="live"), an_accept(key="done"), an_accept(key="fresh", now=LONG_AFTER)
    for change in (live, done, fresh, canceled(done), canceled(fresh)):
        await commit(database.journal, change)
    reaped = await database.keys.reap(LONG_AFTER, None, None, 100)
    assert (reaped.count, reaped.after) == (1, None)
    left = [key for key in ("live", "done", "fresh") if await database.keys.entry(ACCOUNT, PLACE_ORDER, key)]
    assert left == ["live", "fresh"]


async def test_reap_keeps_a_key_for_its_whole_time_to_live_after_a_jump_of_the_clock(database: Database) -> None:
    before, after = an_accept(key="before"), an_accept(key="after", now=LONG_AFTER)
    for change in (before, after, canceled(before), canceled(after)):
        await commit(database.journal, change)
    ttl = entry_of(before).expires_at - entry_of(before).created_at
    jumped_at, second = LONG_AFTER - timedelta(seconds=1), timedelta(seconds=1)
    assert (await database.keys.reap(jumped_at + ttl, jumped_at, None, 100)).count == 0
    assert (await database.keys.reap(jumped_at + ttl + second / 2, jumped_at, None, 100)).count == 1
    assert (await database.keys.reap(LONG_AFTER + ttl + second, jumped_at, None, 100)).count == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_reaping_in_pages_checks_every_key_once(database: Database, limit: int) -> None:
    for number in range(5):
        accepted = an_accept(key=f"key-{number}", account=AccountId(f"acc{number % 2}"))
        await commit(database.journal, accepted)
        if number != 3:
            await commit(database.journal, canceled(accepted))
    removed, after = 0, None
    for _ in range(10):
        reaped = await database.keys.reap(LONG_AFTER, None, after, limit)
        removed, after = removed + reaped.count, reaped.after
        if after is None:
            break
    assert (removed, after) == (4, None)
    assert await database.keys.entry(AccountId("acc1"), PLACE_ORDER, "key-3") is not None


async def test_a_reaped_key_is_reused_in_a_later_generation(database: Database) -> None:
    first = an_accept(key="again")
    await commit(database.journal, first)
    await commit(database.journal, canceled(first))
    assert (await database.keys.reap(LONG_AFTER, None, None, 10)).count == 1
    repeated = an_accept(key="again", now=LONG_AFTER)
    assert await database.journal.append(0, "again", [repeated], LONG_AFTER) == [Conflict()], (
        "the order keeps its venue client order id"
    )
    later = an_accept(key="again", generation=1, now=LONG_AFTER)
    entry = msgspec.structs.replace(entry_of(later), version=1)
    await commit(database.journal, msgspec.structs.replace(later, keys=(entry,)))
    assert await database.keys.entry(ACCOUNT, PLACE_ORDER, "again") == entry


async def test_entries_are_found_by_key_range_and_creation_time(database: Database) -> None:
    soon = START + timedelta(seconds=10)
    for key in ("aa", "ab0", "abf", "abg", "b"):
        await commit(database.journal, an_accept(key=key, now=soon))
    await commit(database.journal, an_accept(key="ab1", now=START))
    await commit(database.journal, an_accept(key="ab2", now=soon, account=AccountId("other")))

    async def keys_since(seconds: float, limit: int) -> list[str]:
        since = START + timedelta(seconds=seconds)
        entries = await database.keys.entries(ACCOUNT, PLACE_ORDER, "ab0", "abf", since, limit)
        return sorted(entry.idempotency_key for entry in entries)

    assert await keys_since(1, 10) == ["ab0", "abf"]
    assert await keys_since(-1, 10) == ["ab0", "ab1", "abf"]
    assert len(await keys_since(1, 1)) == 1
    assert await keys_since(11, 10) == []


async def test_the_end_of_an_order_writes_its_result_into_its_keys_row(database: Database) -> None:
    accepted = an_accept(key="one")
    await commit(database.journal, accepted, an_accept(key="two"))
    ended = request_cancel(state_after(accepted), START)
    assert ended is not None
    await commit(database.journal, ended)

    entry = await database.keys.entry(ACCOUNT, PLACE_ORDER, "one")
    other = await database.keys.entry(ACCOUNT, PLACE_ORDER, "two")

    [result] = ended.results
    assert entry == result.written_to(accepted.keys[0])
    assert entry is not None and other is not None
    assert (entry.status, entry.version, other.status, other.version) == ("succeeded", 2, "accepted", 1)


async def test_the_result_of_an_earlier_order_leaves_a_reused_key_alone(database: Database) -> None:
    first, second = an_accept(key="k"), an_accept(key="k", generation=1)
    await commit(database.journal, first)
    await commit(database.journal, second)
    ended = request_cancel(state_after(first), START)
    assert ended is not None and ended.results
    await commit(database.journal, ended)

    assert await database.keys.entry(ACCOUNT, PLACE_ORDER, "k") == second.keys[0]


async def test_the_keys_of_a_kept_operation_are_never_removed(database: Database) -> None:
    accepted = an_accept(key="one")
    await commit(database.journal, accepted)
    ended = request_cancel(state_after(accepted), START)
    assert ended is not None
    await commit(database.journal, ended)
    later = START + timedelta(days=365)

    assert (await database.keys.reap(later, None, None, 10, {PLACE_ORDER})).count == 0
    assert (await database.keys.reap(later, None, None, 10, {"another"})).count == 1
