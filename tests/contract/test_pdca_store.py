"""The PDCA store on both engines: requests are created once, items are ended once, pages and totals agree."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import apsw
import pytest

from switchyard.adapters.pdca.queue import _CLAIMABLE
from switchyard.adapters.pdca.requests import _POSITIONS
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.domain.errors import HistoryMismatch, IdempotencyConflict, InvalidField
from switchyard.domain.journal.lines import Place
from switchyard.domain.strategies.registry import MetricValue, StrategyBody
from switchyard.domain.strategies.requests import (
    ARTIFACT_BYTES_MAX,
    ATTEMPTS_MAX,
    Filter,
    ItemError,
    ItemResult,
    Progress,
    RunnerInfo,
    Tally,
)
from switchyard.ports.strategies import (
    LostFence,
    NewArtifact,
    PdcaStore,
    PdcaUnavailable,
    SortField,
    StrategyQuery,
    TooManyStrategies,
    UnknownStrategies,
)
from tests.support.pdca import NOW, a_recheck, add_strategies, fresh_pdca_store, strategy_key

LEASE = timedelta(seconds=30)
HEALTHY = ItemResult(health="healthy", metrics={"sharpe": MetricValue(value=Decimal("1.25"))})
FAILED = ItemError(code="NO_FILLS", message="no fills")


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[PdcaStore]:
    async with fresh_pdca_store(request.param, request) as store:
        yield store


async def progress(store: PdcaStore, request_id: str) -> Progress:
    stored = await store.request(request_id)
    assert stored is not None
    return stored.progress


async def test_one_key_makes_one_request_however_many_ask_at_once(store: PdcaStore) -> None:
    await add_strategies(store, "a", "b")
    requests = [a_recheck(f"01J8TPZ7YJ1E1X4C5N9ZP3M3{number:02}") for number in range(20)]
    created = await asyncio.gather(*[store.create(request, "key", "digest", ["b", "a"]) for request in requests])
    assert len({one.request.request_id for one in created}) == 1
    assert sum(not one.replayed for one in created) == 1
    with pytest.raises(IdempotencyConflict):
        await store.create(requests[0], "key", "another digest", ["b", "a"])
    other_client = a_recheck("01J8TPZ7YJ1E1X4C5N9ZP3M3ZZ", client_id="gui")
    assert not (await store.create(other_client, "key", "another digest", ["a"])).replayed
    page = await store.items(created[0].request.request_id, 0, 100)
    assert page is not None
    assert [item.key.strategy_id for item in page.items] == ["b", "a"]
    assert page.stored.request == created[0].request
    assert page.stored.progress == Progress(total=2, queued=2, running=0, succeeded=0, failed=0)


async def test_an_unknown_strategy_stores_nothing_and_leaves_the_key_free(store: PdcaStore) -> None:
    await add_strategies(store, "a")
    with pytest.raises(UnknownStrategies) as raised:
        await store.create(a_recheck(), "key", "digest", ["a", "missing", "lost"])
    assert raised.value.strategy_ids == ("missing", "lost")
    assert await store.request(a_recheck().request_id) is None
    assert not (await store.create(a_recheck(), "key", "another", ["a"])).replayed


async def test_only_the_last_claim_of_an_item_ends_it_and_only_once(store: PdcaStore) -> None:
    await add_strategies(store, "a")
    await store.create(a_recheck(), "key", "digest", ["a"])
    [first] = await store.claim_items("one", 10, now=NOW, lease=LEASE)
    assert await store.claim_items("two", 10, now=NOW, lease=LEASE) == []
    await store.renew(first.fence, NOW + 2 * LEASE)
    assert await store.claim_items("two", 10, now=NOW + LEASE, lease=LEASE) == []
    [second] = await store.claim_items("two", 10, now=NOW + 2 * LEASE, lease=LEASE)
    assert (second.attempts, second.fence.generation) == (2, first.fence.generation + 1)
    for late in (
        store.finish_item(first.fence, HEALTHY, NOW),
        store.renew(first.fence, NOW + 9 * LEASE),
        store.release(first.fence),
    ):
        with pytest.raises(LostFence):
            await late
    outcomes = await asyncio.gather(
        *[store.finish_item(second.fence, HEALTHY, NOW + 3 * LEASE) for _ in range(5)], return_exceptions=True
    )
    assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["LostFence"] * 4 + ["NoneType"]
    stored = await store.request(a_recheck().request_id)
    assert stored is not None
    assert (stored.progress.state, stored.finished_at) == ("succeeded", NOW + 3 * LEASE)
    strategy = await store.strategy(strategy_key("a"))
    assert strategy is not None
    assert (strategy.health, strategy.last_checked_at, strategy.metrics) == (
        "healthy",
        NOW + 3 * LEASE,
        HEALTHY.metrics,
    )


async def test_two_workers_at_once_share_the_items_without_overlap(store: PdcaStore) -> None:
    names = [f"s{number:03}" for number in range(40)]
    await add_strategies(store, *names)
    request = a_recheck(operation="pdca.recheck_all", filter=Filter(), batch_size=100)
    await store.create(request, "key", "digest", None)
    claims = await asyncio.gather(
        *[store.claim_items(f"worker {number}", 10, now=NOW, lease=LEASE) for number in range(8)]
    )
    claimed = [item.fence.key.strategy_id for claim in claims for item in claim]
    assert len(claimed) == len(set(claimed))
    rest = await store.claim_items("last", 100, now=NOW, lease=LEASE)
    assert sorted(claimed + [item.fence.key.strategy_id for item in rest]) == names


def request_id_of(number: int) -> str:
    return f"01J8TPZ7YJ1E1X4C5N9ZP3{number:04}"


async def test_an_account_with_many_waiting_items_delays_no_other_account(store: PdcaStore) -> None:
    names = [f"b{number:02}" for number in range(50)]
    await add_strategies(store, *names, account="bob")
    await add_strategies(store, "mine", *(f"a{number}" for number in range(6)), account="ann")
    ann, bob = (frozenset({strategy_key("any", account).tenant}) for account in ("ann", "bob"))
    # Of several clients, and at once: neither gives the account more than one turn.
    requests = [a_recheck(request_id_of(number), client_id=f"bob-{number % 4}") for number in range(20)]
    await asyncio.gather(*[store.create(each, each.request_id, "digest", names, bob) for each in requests])

    async def claim(limit: int) -> list[str]:
        claimed = await store.claim_items("w", limit, now=NOW, lease=LEASE)
        for item in claimed:
            await store.finish_item(item.fence, HEALTHY, NOW)
        return [f"{item.fence.key.account_id}:{item.fence.key.strategy_id}" for item in claimed]

    first = [name for _ in range(8) for name in await claim(1)]
    assert first == [f"bob:{name}" for name in names[:8]]  # in the order of its first request
    await store.create(a_recheck(request_id_of(100)), "single", "digest", ["mine"], ann)
    assert "ann:mine" in await claim(2)
    bulk = a_recheck(request_id_of(101), operation="pdca.recheck_all", filter=Filter(), batch_size=2)
    await store.create(bulk, "bulk", "digest", None, ann)
    in_turns = [name for _ in range(14) for name in await claim(1)]
    assert [name for name in in_turns if name.startswith("ann:")] == [
        *(f"ann:a{number}" for number in range(6)),
        "ann:mine",
    ]
    assert sum(name.startswith("bob:") for name in in_turns) == 7
    # A burst of its own gives the other account no priority over what waits.
    for number in range(102, 105):
        await store.create(a_recheck(request_id_of(number)), f"{number}", "digest", ["mine", "a0"], ann)
    assert sum(name.startswith("bob:") for name in await claim(10)) in (4, 5, 6)


async def test_a_claim_reads_the_queue_in_the_order_of_an_index(tmp_path: Path) -> None:
    store = await SqlPdcaStore.on_file(tmp_path / "pdca.db")
    await store.close()
    connection = apsw.Connection(str(tmp_path / "pdca.db"))
    for sql, values in ((_CLAIMABLE, (str(NOW), 1)), (_POSITIONS, ("caller",))):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        assert not [step for step in plan if "B-TREE" in step or step in ("SCAN item", "SCAN pdca_items")], plan
    connection.close()


async def test_a_filter_is_fixed_at_acceptance_and_its_batches_run_in_turn(store: PdcaStore) -> None:
    await add_strategies(store, *(f"d{number}" for number in range(5)), tags=("daily", "x"))
    await add_strategies(store, "other", tags=("weekly",))
    request = a_recheck(
        operation="pdca.recheck_all",
        filter=Filter(tags_any=("daily", "priority"), health=("unknown", "degraded")),
        batch_size=2,
    )
    await store.create(request, "key", "digest", None)
    await add_strategies(store, "d9", tags=("daily",))
    seen: list[list[str]] = []
    while claimed := await store.claim_items("one", 10, now=NOW, lease=LEASE):
        seen.append([item.fence.key.strategy_id for item in claimed])
        first, *others = claimed
        await store.finish_item(first.fence, FAILED, NOW)
        if others:
            assert await store.claim_items("two", 10, now=NOW, lease=LEASE) == []
        for item in others:
            await store.finish_item(item.fence, HEALTHY, NOW)
    assert seen == [["d0", "d1"], ["d2", "d3"], ["d4"]]
    assert await progress(store, request.request_id) == Progress(total=5, queued=0, running=0, succeeded=2, failed=3)
    assert (await progress(store, request.request_id)).state == "partial"


async def test_a_filter_that_selects_nothing_has_succeeded_at_once(store: PdcaStore) -> None:
    request = a_recheck(operation="pdca.recheck_all", filter=Filter(tags_any=("none",)))
    await store.create(request, "key", "digest", None)
    stored = await store.request(request.request_id)
    assert stored is not None
    assert (stored.progress.total, stored.progress.state, stored.finished_at) == (0, "succeeded", NOW)


async def test_a_dry_run_and_an_older_request_leave_the_health_as_it_is(store: PdcaStore) -> None:
    await add_strategies(store, "a")
    newer = a_recheck("01J8TPZ7YJ1E1X4C5N9ZP3M3Q2", created_at=NOW + timedelta(minutes=1))
    dry = a_recheck("01J8TPZ7YJ1E1X4C5N9ZP3M3Q3", created_at=NOW + timedelta(minutes=2), dry_run=True)
    for number, request in enumerate((a_recheck(), newer, dry)):
        await store.create(request, f"key {number}", "digest", ["a"])
    claimed = await store.claim_items("one", 10, now=NOW, lease=LEASE)
    by_request = {item.request.request_id: item.fence for item in claimed}
    await store.finish_item(by_request[newer.request_id], HEALTHY, NOW + timedelta(minutes=3))
    unhealthy = ItemResult(health="unhealthy")
    await store.finish_item(by_request[a_recheck().request_id], unhealthy, NOW + timedelta(minutes=4))
    await store.finish_item(by_request[dry.request_id], unhealthy, NOW + timedelta(minutes=5))
    strategy = await store.strategy(strategy_key("a"))
    assert strategy is not None
    assert (strategy.health, strategy.last_request_id) == ("healthy", newer.request_id)
    assert strategy.last_checked_at == NOW + timedelta(minutes=3)


async def test_an_item_that_ends_every_worker_fails_in_the_end(store: PdcaStore) -> None:
    await add_strategies(store, "poison", "good")
    await store.create(a_recheck(), "key", "digest", ["poison", "good"])
    claimed = await store.claim_items("w", 10, now=NOW, lease=LEASE)
    await store.release(claimed[0].fence)
    await store.finish_item(claimed[1].fence, HEALTHY, NOW)
    for number in range(ATTEMPTS_MAX):
        assert len(await store.claim_items("w", 10, now=NOW + number * LEASE, lease=LEASE)) == 1
    assert await store.claim_items("w", 10, now=NOW + ATTEMPTS_MAX * LEASE, lease=LEASE) == []
    page = await store.items(a_recheck().request_id, 0, 10)
    assert page is not None and page.items[0].error is not None
    assert (page.stored.progress.state, page.items[0].error.code) == ("partial", "ATTEMPTS_EXHAUSTED")
    # Counted for good: the removal of the request takes nothing back.
    assert await store.reap(NOW + timedelta(days=1), 10) == 1
    assert await store.tally() == Tally(succeeded=1, failed=1)


async def test_a_failed_run_ends_what_is_left_and_its_workers_are_too_late(store: PdcaStore) -> None:
    await add_strategies(store, "a", "b")
    await store.create(a_recheck(runner="airflow"), "key", "digest", ["a", "b"])
    assert await store.claim_items("embedded", 10, now=NOW, lease=LEASE) == []
    [waiting] = await store.unfinished("airflow", submitted=False)
    run = RunnerInfo(submitted_at=NOW, run_id=waiting.request.request_id, run_state="queued", tries=2)
    await store.note_run(waiting.request.request_id, run)
    assert await store.unfinished("airflow", submitted=False) == []
    [taken] = await store.unfinished("airflow", submitted=True)
    assert taken.run == run
    [claimed] = await store.claim_items("task", 1, now=NOW, lease=LEASE, request_id=waiting.request.request_id)
    assert await store.fail_items(waiting.request.request_id, FAILED, NOW) == 2
    with pytest.raises(LostFence):
        await store.finish_item(claimed.fence, HEALTHY, NOW)
    assert await store.unfinished("airflow", submitted=True) == []
    assert (await progress(store, waiting.request.request_id)).state == "failed"


async def test_artifacts_come_back_as_they_were_and_go_with_their_request(store: PdcaStore) -> None:
    await add_strategies(store, "a")
    await store.create(a_recheck(), "key", "digest", ["a"])
    [claimed] = await store.claim_items("one", 10, now=NOW, lease=LEASE)
    too_large = NewArtifact(name="fills.csv", media_type="text/csv", content=b"x" * (ARTIFACT_BYTES_MAX + 1))
    with pytest.raises(ValueError, match=r"fills\.csv"):
        await store.finish_item(claimed.fence, HEALTHY, NOW, [too_large])
    chart = NewArtifact(name="equity.svg", media_type="image/svg+xml", content=b"\x00<svg/>\xff")
    await store.finish_item(claimed.fence, HEALTHY, NOW, [chart])
    page = await store.items(a_recheck().request_id, 0, 10)
    assert page is not None
    [shown] = page.items[0].artifacts
    [found] = await store.artifacts(a_recheck().request_id, "a", "equity.svg", None, 2)
    assert (found.artifact, found.content) == (shown, chart.content)
    assert await store.artifacts(a_recheck().request_id, "a", "fills.csv", None, 2) == []
    assert await store.reap(NOW, 10) == 0
    assert await store.reap(NOW + LEASE, 10) == 1
    assert await store.artifacts(a_recheck().request_id, "a", "equity.svg", None, 2) == []
    assert not (await store.create(a_recheck(), "key", "another digest", ["a"])).replayed


async def test_pages_have_the_right_total_order_and_filters(store: PdcaStore) -> None:
    for number, strategy_id in enumerate(["b_1", "a%1", "ab1", "c1"]):  # `a%1` can come from no client
        body = StrategyBody(owner=["Ops", None, "Straße", "ops"][number], tags=("daily",) if number % 2 else ())
        await store.put_strategy(strategy_key(strategy_id), body, NOW + timedelta(minutes=number))
    await store.create(a_recheck(), "key", "digest", ["c1", "ab1"])
    for minute, (item, health) in enumerate(
        zip(await store.claim_items("one", 9, now=NOW, lease=LEASE), ("degraded", "healthy"), strict=True)
    ):
        await store.finish_item(item.fence, ItemResult(health=health), NOW + timedelta(minutes=minute))  # type: ignore[arg-type]

    async def ids(query: StrategyQuery) -> tuple[list[str], int]:
        page = await store.strategies(query)
        return [strategy.strategy_id for strategy in page.strategies], page.total

    assert await ids(StrategyQuery(limit=2)) == (["a%1", "ab1"], 4)
    assert await ids(StrategyQuery(limit=2, offset=3)) == (["c1"], 4)
    assert await ids(StrategyQuery(limit=2, offset=4)) == ([], 4)
    assert await ids(StrategyQuery(text="%")) == (["a%1"], 1)
    assert await ids(StrategyQuery(text="_")) == (["b_1"], 1)
    assert await ids(StrategyQuery(text="\\")) == ([], 0)
    assert await ids(StrategyQuery(text="STRASSE")) == (["ab1"], 1)
    assert await ids(StrategyQuery(text="ops")) == (["b_1", "c1"], 2)
    assert await ids(StrategyQuery(filter=Filter(tags_any=("daily", "x")))) == (["a%1", "c1"], 2)
    assert await ids(StrategyQuery(filter=Filter(health=("unknown",), tags_any=("daily",)))) == (["a%1"], 1)
    assert await ids(StrategyQuery(sort="last_checked_at", descending=True)) == (["ab1", "c1", "a%1", "b_1"], 4)
    assert await ids(StrategyQuery(sort="last_checked_at")) == (["a%1", "b_1", "c1", "ab1"], 4)
    assert await ids(StrategyQuery(sort="health")) == (["ab1", "c1", "a%1", "b_1"], 4)
    assert await ids(StrategyQuery(sort="created_at", descending=True)) == (["c1", "ab1", "a%1", "b_1"], 4)
    assert await ids(StrategyQuery(sort="owner")) == (["a%1", "b_1", "ab1", "c1"], 4)
    fields: tuple[SortField, ...] = ("id", "owner", "health", "last_checked_at", "created_at", "updated_at")
    for field in fields:
        assert (await ids(StrategyQuery(sort=field, descending=True)))[1] == 4


async def test_what_people_decide_replaces_only_what_people_decided(store: PdcaStore) -> None:
    first, is_new = await store.put_strategy(strategy_key("a"), StrategyBody(owner="ops", tags=("daily", "x")), NOW)
    assert is_new and first.health == "unknown"
    await store.create(a_recheck(), "key", "digest", ["a"])
    [claimed] = await store.claim_items("one", 1, now=NOW, lease=LEASE)
    await store.finish_item(claimed.fence, HEALTHY, NOW)
    second, is_new = await store.put_strategy(strategy_key("a"), StrategyBody(tags=("x", "y")), NOW + LEASE)
    assert not is_new
    assert (second.owner, second.tags, second.health, second.created_at) == (None, ("x", "y"), "healthy", NOW)
    assert second == await store.strategy(strategy_key("a"))
    assert (await store.strategies(StrategyQuery(filter=Filter(tags_any=("daily",))))).total == 0


async def test_a_shared_recheck_does_not_show_how_many_items_of_others_it_has(store: PdcaStore) -> None:
    await add_strategies(store, "s1", "s2", "s3", account="ann")
    await add_strategies(store, "s1", "s2", "s3", account="bob")
    bobs = frozenset({strategy_key("s1", "bob").tenant})
    shared = a_recheck(operation="pdca.recheck_all", filter=Filter(), batch_size=2)
    own = a_recheck(request_id_of(2), operation="pdca.recheck_all", filter=Filter(), batch_size=2, runner="airflow")
    await store.create(shared, "key", "digest", None)
    await store.create(own, "another", "digest", None, bobs)

    async def work_off(now: datetime, request_id: str | None = None) -> None:
        for item in await store.claim_items("w", 1, now=now, lease=LEASE, request_id=request_id):
            await store.finish_item(item.fence, HEALTHY, now)

    await work_off(NOW)  # of ann
    page = await store.items(shared.request_id, 0, 9, bobs)
    assert page is not None and page.stored.started_at is None
    for number in range(1, 6):
        await work_off(NOW + number * LEASE)
    for number in (1, 3, 5):
        await work_off(NOW + number * LEASE, own.request_id)
    pages = [await store.items(request.request_id, 0, 9, bobs) for request in (shared, own)]
    assert pages[0] is not None and pages[1] is not None
    assert pages[0].items == pages[1].items
    assert [item.batch for item in pages[0].items] == [0, 0, 1]
    times = [(page.stored.started_at, page.stored.finished_at) for page in pages if page is not None]
    assert times == [(NOW + LEASE, NOW + 5 * LEASE)] * 2
    rest = await store.items(shared.request_id, 2, 9, bobs)
    whole = await store.items(shared.request_id, 0, 9)
    assert rest is not None and whole is not None
    assert rest.items == pages[0].items[2:]
    assert ([item.batch for item in whole.items], whole.stored.started_at) == ([0, 0, 1, 1, 2, 2], NOW)


async def test_a_recheck_began_when_its_first_item_was_claimed_first(store: PdcaStore) -> None:
    await add_strategies(store, "a")
    await store.create(a_recheck(), "key", "digest", ["a"])
    for now in (NOW, NOW + LEASE):
        assert len(await store.claim_items("w", 1, now=now, lease=LEASE)) == 1
    page = await store.items(a_recheck().request_id, 0, 9, frozenset({strategy_key("a").tenant}))
    assert page is not None
    assert (page.stored.started_at, page.items[0].started_at, page.items[0].attempts) == (NOW, NOW, 2)


async def test_each_account_has_strategies_and_rechecks_of_its_own(store: PdcaStore) -> None:
    await add_strategies(store, "s", "a", account="ann")
    await add_strategies(store, "s", "b", account="bob", tags=("daily",))
    anns, bobs = (frozenset({strategy_key("s", account).tenant}) for account in ("ann", "bob"))
    assert [each.account_id for each in await store.named("s", None, 9)] == ["ann", "bob"]
    assert [each.account_id for each in await store.named("s", bobs, 9)] == ["bob"]
    assert await store.named("a", bobs, 9) == []
    page = await store.strategies(StrategyQuery(tenants=anns))
    assert ([each.strategy_id for each in page.strategies], page.total) == (["a", "s"], 2)
    assert (await store.strategies(StrategyQuery(tenants=anns, filter=Filter(tags_any=("daily",))))).total == 0
    with pytest.raises(UnknownStrategies) as raised:
        await store.create(a_recheck(), "key", "digest", ["s", "b"], anns)
    assert raised.value.strategy_ids == ("b",)

    # One request over both accounts: each sees its own part of it.
    both = a_recheck(operation="pdca.recheck_all", filter=Filter())
    await store.create(both, "key", "digest", None)
    claimed = {item.fence.key: item for item in await store.claim_items("w", 9, now=NOW, lease=LEASE)}
    assert len(claimed) == 4
    chart = NewArtifact(name="equity.svg", media_type="image/svg+xml", content=b"bob")
    unhealthy = ItemResult(health="unhealthy")
    await store.finish_item(claimed[strategy_key("s", "bob")].fence, unhealthy, NOW + LEASE, [chart])
    await store.finish_item(claimed[strategy_key("b", "bob")].fence, HEALTHY, NOW + 2 * LEASE)
    await store.finish_item(claimed[strategy_key("s", "ann")].fence, HEALTHY, NOW + 3 * LEASE)
    healths = {each.account_id: each.health for each in await store.named("s", None, 9)}
    assert healths == {"ann": "healthy", "bob": "unhealthy"}
    of_bob, of_ann = [await store.items(both.request_id, 0, 9, tenants) for tenants in (bobs, anns)]
    assert of_bob is not None and of_ann is not None
    assert [item.key.strategy_id for item in of_bob.items] == ["b", "s"]
    assert of_bob.stored.progress == Progress(total=2, queued=0, running=0, succeeded=2, failed=0)
    assert (of_bob.stored.started_at, of_bob.stored.finished_at) == (NOW, NOW + 2 * LEASE)
    assert (of_ann.stored.progress.state, of_ann.stored.finished_at) == ("running", None)
    assert await store.items(both.request_id, 0, 9, frozenset({strategy_key("s", "eve").tenant})) is None
    assert await store.items(both.request_id, 0, 9, frozenset()) is None
    [found] = await store.artifacts(both.request_id, "s", "equity.svg", None, 9)
    assert (found.tenant, found.content) == (strategy_key("s", "bob").tenant, b"bob")
    assert await store.artifacts(both.request_id, "s", "equity.svg", anns, 9) == []


async def test_a_name_of_several_accounts_is_rechecked_for_each_of_them(
    store: PdcaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for account in ("bob", "ann", "eve"):
        await add_strategies(store, "s", account=account)
    tenants = frozenset(strategy_key("s", account).tenant for account in ("ann", "bob"))
    await store.create(a_recheck(), "key", "digest", ["s"], tenants)
    page = await store.items(a_recheck().request_id, 0, 9)
    assert page is not None and [item.key.account_id for item in page.items] == ["ann", "bob"]
    monkeypatch.setattr("switchyard.adapters.pdca.requests.NAMED_ITEMS_MAX", 2)
    with pytest.raises(InvalidField):
        await store.create(a_recheck("01J8TPZ7YJ1E1X4C5N9ZP3M3ZZ"), "other", "digest", ["s"])
    assert await store.request("01J8TPZ7YJ1E1X4C5N9ZP3M3ZZ") is None


async def test_a_full_account_keeps_no_other_out_and_what_people_register_goes_first(
    store: PdcaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.adapters.pdca.strategies.STRATEGIES_MAX", 3)
    ordered = [strategy_key(name, "bob") for name in ("o1", "o2", "o3", "o4")]
    registered = await store.register(Place(), Place(), [*ordered, strategy_key("o1", "ann")], NOW)
    assert registered.left_out == (ordered[3],)
    await store.put_strategy(strategy_key("p", "ann"), StrategyBody(), NOW)

    async def of_bob() -> list[str]:
        tenants = frozenset({strategy_key("o1", "bob").tenant})
        return [each.strategy_id for each in (await store.strategies(StrategyQuery(tenants=tenants))).strategies]

    # The oldest that no recheck has looked at makes room.
    await store.create(a_recheck(), "key", "digest", ["o1"])
    for item in await store.claim_items("w", 9, now=NOW, lease=LEASE):
        await store.finish_item(item.fence, HEALTHY, NOW)
    await store.put_strategy(strategy_key("p1", "bob"), StrategyBody(), NOW)
    assert await of_bob() == ["o1", "o3", "p1"]
    await store.put_strategy(ordered[0], StrategyBody(owner="ops"), NOW)  # an order named it first
    await store.put_strategy(strategy_key("p2", "bob"), StrategyBody(), NOW)
    assert await of_bob() == ["o1", "p1", "p2"]
    with pytest.raises(TooManyStrategies):
        await store.put_strategy(strategy_key("p3", "bob"), StrategyBody(), NOW)
    assert await of_bob() == ["o1", "p1", "p2"]
    assert (await store.register(Place(), Place(), [ordered[1]], NOW)).left_out == (ordered[1],)
    assert await store.delete_strategy(strategy_key("p1", "bob"))
    await store.put_strategy(strategy_key("p3", "bob"), StrategyBody(), NOW)
    assert await of_bob() == ["o1", "p2", "p3"]


async def test_a_deleted_strategy_is_gone_and_its_rechecks_end_without_it(store: PdcaStore) -> None:
    await add_strategies(store, "running", "queued", tags=("daily",))
    await add_strategies(store, "running", account="ann")
    request = a_recheck(batch_size=1)
    tenants = frozenset({strategy_key("running").tenant})
    await store.create(request, "key", "digest", ["running", "queued"], tenants)
    [claimed] = await store.claim_items("w", 9, now=NOW, lease=LEASE)
    for strategy_id in ("running", "queued"):
        assert await store.delete_strategy(strategy_key(strategy_id))
        assert not await store.delete_strategy(strategy_key(strategy_id))
    chart = NewArtifact(name="equity.svg", media_type="image/svg+xml", content=b"<svg/>")
    await store.finish_item(claimed.fence, HEALTHY, NOW, [chart])
    assert await store.claim_items("w", 9, now=NOW, lease=LEASE) == []
    page = await store.items(request.request_id, 0, 9, tenants)
    assert page is not None
    assert [item.error.code if item.error else None for item in page.items] == [None, "STRATEGY_DELETED"]
    assert (page.stored.progress.state, page.stored.finished_at) == ("partial", NOW)
    assert len(await store.artifacts(request.request_id, "running", "equity.svg", tenants, 9)) == 1
    assert (await store.strategies(StrategyQuery(tenants=tenants))).total == 0
    [other] = await store.named("running", None, 9)
    assert (other.account_id, other.health) == ("ann", "unknown")
    again, is_new = await store.put_strategy(strategy_key("running"), StrategyBody(), NOW)
    assert (is_new, again.health, again.tags) == (True, "unknown", ())


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_a_strategy_that_was_registered_again_is_not_the_one_that_was_to_be_rechecked(
    store: PdcaStore, is_bulk: bool
) -> None:
    await add_strategies(store, "a", "b", "kept")
    # The clocks of gateways differ: that of the one that took the request is behind here.
    request = a_recheck(batch_size=1, created_at=NOW - LEASE, filter=Filter() if is_bulk else None)
    await store.create(request, "key", "digest", None if is_bulk else ["a", "b", "kept"])
    [running] = await store.claim_items("w", 9, now=NOW, lease=LEASE)
    for strategy_id in ("a", "b"):
        assert await store.delete_strategy(strategy_key(strategy_id))
        await store.put_strategy(strategy_key(strategy_id), StrategyBody(owner="new"), NOW - LEASE / 2)
    await store.finish_item(running.fence, HEALTHY, NOW)
    assert await store.claim_items("w", 9, now=NOW, lease=LEASE) == []  # that of b ends here
    [kept] = await store.claim_items("w", 9, now=NOW, lease=LEASE)
    await store.finish_item(kept.fence, HEALTHY, NOW)
    page = await store.items(request.request_id, 0, 9)
    assert page is not None
    errors = [item.error.code if item.error else None for item in page.items]
    assert errors == [None, "STRATEGY_DELETED", None]
    found = [await store.strategy(strategy_key(strategy_id)) for strategy_id in ("a", "b", "kept")]
    assert [(each.health, each.last_request_id) for each in found if each is not None] == [
        ("unknown", None),
        ("unknown", None),
        ("healthy", request.request_id),
    ]
    await store.create(a_recheck(request_id_of(2)), "again", "digest", ["a"])
    [claimed] = await store.claim_items("w", 9, now=NOW, lease=LEASE)
    await store.finish_item(claimed.fence, HEALTHY, NOW)
    judged = await store.strategy(strategy_key("a"))
    assert judged is not None and (judged.health, judged.owner) == ("healthy", "new")


async def test_strategies_of_orders_are_registered_with_the_place_that_was_read_to(store: PdcaStore) -> None:
    await add_strategies(store, "known", tags=("daily",))
    place = Place(1, 5, "5" * 64)
    registered = await store.register(Place(), place, [strategy_key("new"), strategy_key("known")], NOW)
    assert (registered.new, registered.left_out) == ((strategy_key("new"),), ())
    assert await store.place() == place
    with pytest.raises(HistoryMismatch):
        await store.register(Place(), Place(1, 9, "9" * 64), [strategy_key("newer")], NOW)
    assert await store.strategy(strategy_key("newer")) is None
    known = await store.strategy(strategy_key("known"))
    assert known is not None and known.tags == ("daily",)


async def test_a_file_that_is_removed_or_replaced_takes_nothing_more(tmp_path: Path) -> None:
    path, copy = tmp_path / "pdca.db", tmp_path / "copy.db"
    for source in (path, copy):
        store = await SqlPdcaStore.on_file(source)
        await add_strategies(store, source.stem)
        await store.close()
    store = await SqlPdcaStore.on_file(path)
    try:
        assert await store.strategy(strategy_key("pdca")) is not None
        copy.rename(path)  # as somebody restores a copy under a running server
        with pytest.raises(PdcaUnavailable, match="restart"):
            await add_strategies(store, "lost")
        path.unlink()
        with pytest.raises(PdcaUnavailable, match="restart"):
            await store.strategy(strategy_key("pdca"))
    finally:
        await store.close()


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_a_store_whose_wal_is_removed_takes_nothing_more(tmp_path: Path, suffix: str) -> None:
    store = await SqlPdcaStore.on_file(tmp_path / "pdca.db")
    try:
        await add_strategies(store, "known")
        (tmp_path / f"pdca.db{suffix}").unlink()
        with pytest.raises(PdcaUnavailable, match=f"pdca.db{suffix} was .*restart"):
            await add_strategies(store, "lost")
    finally:
        await store.close()
