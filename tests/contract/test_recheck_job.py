"""A recheck from the journal and the books of every engine to the result, the artifacts and the health."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.domain.books.entries import fill_entry_id
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.errors import OutcomeUnknown
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import Offset, bus_event
from switchyard.domain.strategies.metrics import Minimum
from switchyard.domain.strategies.registry import MetricName, StrategyBody, Threshold, tenant_of_client
from switchyard.domain.strategies.requests import (
    ATTEMPTS_MAX,
    ItemError,
    ItemResult,
    RecheckItem,
    RecheckRequest,
    Tally,
    Window,
)
from switchyard.flow.clock import Wake
from switchyard.flow.kill.switch import KillRequest
from switchyard.flow.pdca import worker as worker_module
from switchyard.flow.pdca.worker import LEASE
from switchyard.ports.books import LedgerUnavailable, SourceClaim
from switchyard.ports.strategies import BooksState, LostFence
from tests.support.build import ACCOUNT, VENUE, an_accept
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.pdca import a_recheck, strategy_key
from tests.support.recheck_site import ACCEPTED_AT, STRATEGY, RecheckSite, recheck_site
from tests.support.strategies import CAPITAL, FIGURES, FILLS, WINDOW

KEY = strategy_key(STRATEGY, ACCOUNT)
FIRST = "01J8TPZ7YJ1E1X4C5N9ZP3M3QA"
SECOND = "01J8TPZ7YJ1E1X4C5N9ZP3M3QB"
THIRD = "01J8TPZ7YJ1E1X4C5N9ZP3M3QC"


@pytest.fixture
async def site(database: Database, tmp_path: Path) -> AsyncIterator[RecheckSite]:
    async with recheck_site(database, tmp_path) as site:
        await site.trade()
        await register(site, {"win_rate": Threshold(unhealthy=Decimal("0.6"))})
        yield site


async def register(site: RecheckSite, thresholds: dict[MetricName, Threshold]) -> None:
    await site.store.put_strategy(KEY, StrategyBody(capital=CAPITAL, thresholds=thresholds), ACCEPTED_AT)


def a_request(request_id: str = FIRST, *, dry_run: bool = False, **more: Any) -> RecheckRequest:
    window = Window(from_=WINDOW.start, to=ACCEPTED_AT + timedelta(days=30))  # what is still to come is not idle
    base = a_recheck(request_id, dry_run=dry_run, created_at=ACCEPTED_AT)
    return msgspec.structs.replace(base, window=window, **more)


async def ask(site: RecheckSite, request: RecheckRequest) -> None:
    await site.store.create(request, request.request_id, "digest", [STRATEGY])


async def item_of(site: RecheckSite, request_id: str) -> RecheckItem:
    page = await site.store.items(request_id, 0, 10)
    assert page is not None
    [item] = page.items
    return item


async def confirmed() -> None:
    pass


async def rechecked(site: RecheckSite, request: RecheckRequest, **worker: Any) -> ItemResult:
    await ask(site, request)
    assert await site.worker(**worker).run_once() == 1
    item = await item_of(site, request.request_id)
    assert item.result is not None, item.error
    return item.result


async def test_the_figures_of_the_books_are_those_worked_out_by_hand(site: RecheckSite) -> None:
    result = await rechecked(site, a_request())
    assert {name: str(metric.value) for name, metric in result.metrics.items()} == FIGURES
    assert (result.metrics["fees"].unit, result.metrics["slippage"].unit) == ("USD", "bps")
    item = await item_of(site, FIRST)
    assert [artifact.name for artifact in item.artifacts] == ["metrics.json", "fills.csv", "equity.svg"]
    [stored] = await site.store.artifacts(FIRST, STRATEGY, "metrics.json", None, 2)
    report = json.loads(stored.content, parse_float=Decimal)
    assert [str(day["net_pnl"]) for day in report["daily"]] == ["48", "-2", "-21", "0", "9"]
    assert (report["fills"], report["fills_listed"], report["orders"], report["net_pnl"]) == (5, 5, 7, 34)
    assert report["books_seq"] == (await site.database.journal.head(0)).seq - 1  # the kill came after it
    [table] = await site.store.artifacts(FIRST, STRATEGY, "fills.csv", None, 2)
    assert table.content.count(b"\r\n") == 6


async def test_an_unhealthy_strategy_is_made_reduce_only_once_and_a_person_can_undo_it(site: RecheckSite) -> None:
    result = await rechecked(site, a_request())
    assert (result.health, result.enforced) == ("unhealthy", "reduce_only")
    [kill] = await site.database.kills.active()
    assert (kill.strategy, kill.mode, kill.set_by) == (STRATEGY, "reduce_only", "pdca")
    assert kill.account_id == ACCOUNT and "win_rate 0.5 is below 0.6" in kill.set_reason
    assert (await site.database.journal.head(0)).seq == kill.seq  # journaled
    strategy = await site.store.strategy(KEY)
    assert strategy is not None and strategy.health == "unhealthy"
    assert any(kill.kill_id in reason for reason in strategy.health_reasons)

    site.clock.advance(timedelta(minutes=1))
    await site.book()
    later = a_request(SECOND)
    assert (await rechecked(site, later)).enforced == "reduce_only"
    assert len(await site.database.kills.active()) == 1  # the same kill still holds

    await site.switch.clear(kill.kill_id, "ann", "looked at it")
    await site.book()
    # A repeat of the first recheck, whose result was lost, must not undo what the person decided.
    site.clock.advance(timedelta(minutes=1))
    again = await site.worker()._recheck.check(a_request(), strategy, confirmed)
    assert again.result.enforced is None
    assert await site.database.kills.active() == []


async def test_orders_of_another_account_under_the_label_count_for_that_account_alone(site: RecheckSite) -> None:
    other = AccountId("other")
    await register(site, {"reject_rate": Threshold(unhealthy=Decimal("0.5"))})
    theirs = strategy_key(STRATEGY, other)
    await site.store.put_strategy(
        theirs, StrategyBody(thresholds={"reject_rate": Threshold(unhealthy=Decimal("0.5"))}), ACCEPTED_AT
    )
    await site.reject(other, 20)
    await ask(site, a_request())  # of both accounts
    assert await site.worker().run_once() == 2
    page = await site.store.items(FIRST, 0, 10)
    assert page is not None
    found = {item.key: item.result for item in page.items if item.result is not None}
    assert (found[KEY].health, str(found[KEY].metrics["reject_rate"].value)) == ("healthy", FIGURES["reject_rate"])
    assert (found[theirs].health, found[theirs].enforced) == ("unhealthy", "reduce_only")
    [kill] = await site.database.kills.active()
    assert (kill.account_id, kill.strategy) == (other, STRATEGY)
    [fills] = await site.store.artifacts(FIRST, STRATEGY, "fills.csv", frozenset({theirs.tenant}), 2)
    assert fills.content.count(b"\r\n") == 1  # the heading: the fills are the first account's


async def test_a_kill_without_an_account_is_a_restriction_of_every_account(site: RecheckSite) -> None:
    """As rechecks set them before strategies belonged to accounts."""
    request = KillRequest(strategy=STRATEGY, mode="reduce_only", by="pdca", reason="stored")
    stored = await site.switch._set(request, None, [])
    result = await rechecked(site, a_request())
    assert any(stored.kill_id in reason for reason in result.health_reasons)
    assert await site.database.kills.active() == [stored]


async def test_one_account_cannot_use_up_the_kills_of_others(
    site: RecheckSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.flow.kill.switch.AUTOMATIC_ACCOUNT_KILLS_MAX", 1)
    other = KillRequest(account=ACCOUNT, strategy="another", mode="reduce_only", by="pdca", reason="unhealthy")
    await site.switch.set_by_program(other)
    result = await rechecked(site, a_request())
    assert (result.health, result.enforced) == ("unhealthy", "reduce_only")
    # Not one more strategy: the whole account, also under labels that it has not used yet.
    _, kill = await site.database.kills.active()
    assert (kill.account_id, kill.strategy, kill.mode) == (ACCOUNT, None, "reduce_only")
    assert STRATEGY in kill.set_reason
    await site.switch.set_by_program(msgspec.structs.replace(other, strategy="third"))
    assert len(await site.database.kills.active()) == 2
    theirs = await site.switch.set_by_program(msgspec.structs.replace(other, account=AccountId("other")))
    assert theirs.strategy == "another"


async def test_a_strategy_that_was_deleted_or_has_no_account_is_not_restricted(site: RecheckSite) -> None:
    strategy = await site.store.strategy(KEY)
    assert strategy is not None
    await site.store.delete_strategy(KEY)
    checked = await site.worker()._recheck.check(a_request(), strategy, confirmed)
    assert (checked.result.health, checked.result.enforced) == ("unhealthy", None)
    # One that has its name now was not rechecked.
    site.clock.advance(timedelta(seconds=1))
    await site.store.put_strategy(KEY, StrategyBody(), site.clock.now())
    checked = await site.worker()._recheck.check(a_request(), strategy, confirmed)
    assert (checked.result.health, checked.result.enforced) == ("unhealthy", None)
    # No orders count in what a client registered for itself, whatever their label.
    of_client = msgspec.structs.replace(strategy, tenant=tenant_of_client("ops"))
    empty = await site.worker()._recheck.check(a_request(), of_client, confirmed)
    assert (empty.result.health, empty.result.metrics["reject_rate"].value) == ("unknown", None)
    assert await site.database.kills.active() == []


async def test_a_dry_run_and_a_small_sample_change_nothing(site: RecheckSite) -> None:
    before = await site.store.strategy(KEY)
    dry = await rechecked(site, a_request(dry_run=True))
    assert (dry.health, dry.enforced) == ("unhealthy", None)
    assert await site.store.strategy(KEY) == before
    assert await site.database.kills.active() == []
    small = await rechecked(site, a_request(SECOND, metrics=("fees",)), minimum=Minimum(2, 3))
    assert (small.health, small.enforced) == ("unknown", None)
    assert set(small.metrics) == {"fees", "win_rate"}  # what was asked for, and what the health is judged by
    assert await site.database.kills.active() == []


async def test_what_people_take_back_or_enter_in_the_books_counts(site: RecheckSite) -> None:
    person: dict[str, Any] = {"account_id": ACCOUNT, "by": "ann", "reason": "for the test"}
    last = fill_entry_id(VENUE, ACCOUNT, FILLS[-1].exec_id)
    at = site.clock.now()
    await site.ledger.enter(ManualEntry(type="Reversal", key="k-1", reverses=last, **person), at)
    fee = ManualEntry(type="Fee", key="k-2", currency="USD", amount=Decimal(3), strategy=STRATEGY, **person)
    await site.ledger.enter(fee, at)
    result = await rechecked(site, a_request(dry_run=True))
    [stored] = await site.store.artifacts(FIRST, STRATEGY, "metrics.json", None, 2)
    report = json.loads(stored.content, parse_float=Decimal)
    # Without the last fill the short position stays open; the fee is of the day on which it was entered.
    assert [day["net_pnl"] for day in report["daily"]] == [48, -2, -21, 0, -3]
    assert (report["fills"], report["round_trips"], result.metrics["fees"].value) == (4, 1, Decimal(8))


async def test_only_a_halted_account_of_the_strategy_stops_its_recheck(site: RecheckSite) -> None:
    async def lose_an_event(account: AccountId, claim: SourceClaim) -> SourceClaim:
        """Have the books read the account's newest event without the one before it."""
        [seq] = await commit(site.database.journal, an_accept(account=account))
        [event] = await site.database.journal.read(0, seq - 1, 1)
        taken = msgspec.structs.replace(bus_event(event), previous_seq=seq - 1)
        return (await site.ledger.post(claim, [taken], Offset(seq))).claim

    # The source of books that read Kafka, whose offsets say nothing about events.
    claim = await lose_an_event(AccountId("unconcerned"), await site.ledger.claim("kafka:topic:0", Offset()))
    assert [halted.account_id for halted in await site.ledger.halted(9)] == ["unconcerned"]
    assert (await rechecked(site, a_request(dry_run=True))).health == "unhealthy"

    await lose_an_event(ACCOUNT, claim)
    await ask(site, a_request(SECOND, dry_run=True))
    await site.worker().run_once()
    item = await item_of(site, SECOND)
    assert item.state == "failed" and item.result is None
    assert isinstance(item.error, ItemError) and item.error.code == "BOOKS_HALTED"
    assert f"the account {ACCOUNT} has halted" in item.error.message

    await site.book()  # by the journal, which has the event
    assert (await rechecked(site, a_request(THIRD, dry_run=True))).health == "unhealthy"


async def test_a_worker_that_was_paused_past_its_lease_ends_nothing(site: RecheckSite) -> None:
    await ask(site, a_request(dry_run=True))
    [slow] = await site.store.claim_items("slow", 1, now=site.clock.now(), lease=LEASE)
    assert await site.worker("second").run_once() == 0  # the lease holds
    site.clock.advance(LEASE + timedelta(seconds=1))
    assert await site.worker("second").run_once() == 1
    first = await item_of(site, FIRST)
    with pytest.raises(LostFence):
        await site.store.finish_item(slow.fence, ItemError(code="LATE", message="late"), site.clock.now())
    assert await item_of(site, FIRST) == first and first.attempts == 2


async def test_a_worker_that_lost_its_item_restricts_nothing(site: RecheckSite) -> None:
    await ask(site, a_request())
    [slow] = await site.store.claim_items("slow", 1, now=site.clock.now(), lease=LEASE)
    site.clock.advance(LEASE + timedelta(seconds=1))
    await site.store.claim_items("second", 1, now=site.clock.now(), lease=LEASE)
    await site.worker("slow")._work(slow)
    assert await site.database.kills.active() == []
    lost = {"cause": "claimed_by_another"}
    assert site.metrics.registry.get_sample_value("pdca_rechecks_interrupted_total", lost) == 1


async def test_a_stopped_worker_gives_its_items_back(site: RecheckSite, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, blocked = asyncio.Event(), asyncio.Event()

    async def hold(_account: AccountId) -> Any:
        reached.set()
        await blocked.wait()

    monkeypatch.setattr(site.fills, "state", hold)
    await ask(site, a_request())
    running = asyncio.create_task(site.worker().run(Wake()))
    await asyncio.wait_for(reached.wait(), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    item = await item_of(site, FIRST)
    assert (item.state, item.attempts) == ("queued", 0)


async def test_an_outage_uses_up_no_attempts_and_a_long_one_is_named(
    site: RecheckSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "RETRY_SECONDS", 0)
    state, faults = site.fills.state, [LedgerUnavailable("away"), OutcomeUnknown("lost")] * ATTEMPTS_MAX

    async def fails_for_a_while(account: AccountId) -> BooksState:
        if faults:
            raise faults.pop()
        return await state(account)

    monkeypatch.setattr(site.fills, "state", fails_for_a_while)
    await rechecked(site, a_request())
    assert ((await item_of(site, FIRST)).attempts, faults) == (1, [])

    async def fails_for_good(_account: AccountId) -> BooksState:
        site.clock.advance(timedelta(seconds=worker_module.OUTAGE_SECONDS_MAX))
        raise LedgerUnavailable("away")

    monkeypatch.setattr(site.fills, "state", fails_for_good)
    await ask(site, a_request(SECOND))
    await site.worker().run_once()
    item = await item_of(site, SECOND)
    assert item.error == ItemError(code="DATABASE_AWAY", message="a database did not answer for 15 minutes")
    assert await site.store.tally() == Tally(succeeded=1, failed=1)
