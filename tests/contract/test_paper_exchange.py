"""The paper exchange over its durable book: time, restarts, bounds and failures."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apsw
import pytest

from switchyard.adapters.venues.paper import exchange as exchange_module
from switchyard.adapters.venues.paper.exchange import DOWN, PaperExchange
from switchyard.adapters.venues.paper.market import Market, PaperQuotes
from switchyard.adapters.venues.paper.settlement import BUSY
from switchyard.adapters.venues.paper.store import Store
from switchyard.domain.errors import AlreadyRunning, SchemaMismatch
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.risk.claims import TradingDay
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, VenueRejected, VenueUnavailable
from tests.support.memory.clock import ManualClock
from tests.support.polling import DEADLINE_SECONDS
from tests.support.venue_orders import an_order, bare, by_id, read_reports

SIM = VenueName("sim")
SECOND = timedelta(seconds=1)
# A buy limit far below the market: the order rests.
FAR = "1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "book" / "paper.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def running(path: Path, clock: ManualClock, **options: Any) -> AsyncIterator[PaperExchange]:
    options.setdefault("quote", Market(Catalogue(), seed=1).quote)
    exchange = PaperExchange(SIM, path=path, catalogue=Catalogue(), clock=clock, **options)
    try:
        await exchange.start()
        yield exchange
    finally:
        await exchange.close()


async def status(exchange: PaperExchange, client_id: str) -> str | None:
    found = await exchange.find(by_id(VenueClientOrderId(client_id)))
    return None if found is None else found.status


async def test_a_delayed_order_is_working_until_its_reports_are_due(path: Path, clock: ManualClock) -> None:
    async with running(path, clock, delay=SECOND, partial_steps=2) as exchange:
        await exchange.submit(an_order("one"))
        assert await status(exchange, "one") == "WORKING"
        clock.advance(SECOND)
        await read_reports(exchange, 1)
        assert await status(exchange, "one") == "PARTIALLY_FILLED"
        clock.advance(SECOND)
        reports = await read_reports(exchange, 2)
        assert [report.status for report in reports] == ["PARTIALLY_FILLED", "FILLED"]
        assert reports[1].at == clock.now()


async def test_a_delayed_order_can_be_cancelled_and_then_never_fills(path: Path, clock: ManualClock) -> None:
    async with running(path, clock, delay=SECOND) as exchange:
        await exchange.submit(an_order("one"))
        first = await exchange.cancel(an_order("one"))
        clock.advance(2 * SECOND)
        assert isinstance(first, Accepted)
        assert await exchange.cancel(an_order("one")) == first
        await exchange.submit(an_order("two"))
        clock.advance(SECOND)
        reports = await read_reports(exchange, 2)
        assert [(report.venue_client_order_id, report.status) for report in reports] == [
            ("one", "CANCELED"),
            ("two", "FILLED"),
        ]


async def test_a_fill_that_is_due_takes_precedence_over_a_cancel(path: Path, clock: ManualClock) -> None:
    async with running(path, clock, delay=SECOND) as exchange:
        await exchange.submit(an_order("one"))
        clock.advance(SECOND)
        assert await exchange.cancel(an_order("one")) == VenueRejected("ORDER_FINAL")


async def test_an_order_submitted_and_cancelled_in_one_group_is_cancelled(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        order = an_order("one", price=FAR)
        submitted, cancelled = await asyncio.gather(exchange.submit(order), exchange.cancel(order))
        assert isinstance(submitted, Accepted)
        assert bare(submitted) == cancelled
        assert await status(exchange, "one") == "CANCELED"


async def test_a_resting_order_fills_at_its_limit_price_once_marketable(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        market = PaperQuotes(Catalogue(), clock, seed=1)  # as that of the exchange
        limit = market.current("USDJPY").quote.bid
        await exchange.submit(an_order("one", price=limit))
        assert await status(exchange, "one") == "WORKING"
        while market.current("USDJPY").quote.ask > limit:
            clock.advance(SECOND)
        [report] = await read_reports(exchange, 1)
        assert (report.status, report.last_price) == ("FILLED", limit)


async def test_a_stop_order_waits_over_a_restart_and_is_triggered_by_the_market(path: Path, clock: ManualClock) -> None:
    market = PaperQuotes(Catalogue(), clock, seed=1)
    stop = market.current("USDJPY").quote.ask + Decimal("0.02")
    order = an_order("one", order_type="STOP", time_in_force="GTC", stop=stop)
    async with running(path, clock) as exchange:
        await exchange.submit(order)
    async with running(path, clock) as exchange:
        assert await status(exchange, "one") == "WORKING"
        while market.current("USDJPY").quote.ask < stop:
            clock.advance(SECOND)
        reached = market.current("USDJPY").quote.ask
        triggered, fill = await read_reports(exchange, 2)
        assert (triggered.exec_type, fill.status, fill.last_price) == ("TRIGGERED", "FILLED", reached)


async def test_a_day_order_expires_also_if_the_exchange_was_down_at_the_end_of_its_day(
    path: Path, clock: ManualClock
) -> None:
    new_york = TradingDay(ZoneInfo("America/New_York"), time(17))
    order = an_order("one", price=FAR, time_in_force="DAY", accepted_at=clock.now())
    async with running(path, clock, session=new_york) as exchange:
        await exchange.submit(order)
        clock.advance(new_york.end_of(clock.now()) - clock.now() - SECOND)
        assert await status(exchange, "one") == "WORKING"
    clock.advance(timedelta(hours=3))
    async with running(path, clock, session=new_york) as exchange:
        [report] = await read_reports(exchange, 1)
        assert (report.status, report.reason, report.at) == ("EXPIRED", "DAY_ENDED", clock.now())
        assert await exchange.cancel(order) == VenueRejected("ORDER_FINAL")


async def test_pending_fills_happen_after_a_restart(path: Path, clock: ManualClock) -> None:
    async with running(path, clock, delay=SECOND, partial_steps=3) as exchange:
        await exchange.submit(an_order("one"))
        clock.advance(SECOND)
        await read_reports(exchange, 1)
    clock.advance(timedelta(hours=1))
    async with running(path, clock, delay=SECOND) as exchange:
        reports = await read_reports(exchange, 3)
        assert [report.status for report in reports] == ["PARTIALLY_FILLED", "PARTIALLY_FILLED", "FILLED"]
        assert reports[-1].filled_qty_total == 1000


async def test_resting_orders_are_still_there_after_a_restart(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        first = await exchange.submit(an_order("one", price=FAR))
    async with running(path, clock) as exchange:
        assert await exchange.submit(an_order("one", price=FAR)) == first
        assert await exchange.cancel(an_order("one")) == first
        [report] = await read_reports(exchange, 1)
        assert report.status == "CANCELED"


async def test_ids_are_recognised_and_numbering_continues_after_a_restart(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        first = await exchange.submit(an_order("one"))
        before = await read_reports(exchange, 1)
    async with running(path, clock) as exchange:
        assert await exchange.submit(an_order("one")) == bare(first)
        second = await exchange.submit(an_order("two"))
        assert second != first
        after = await read_reports(exchange, 2)
        assert after[0] == before[0]
        assert [report.venue_client_order_id for report in after] == ["one", "two"]


async def test_an_acknowledged_order_is_already_in_the_files(path: Path, clock: ManualClock) -> None:
    crashed = path.with_name("crashed.db")
    async with running(path, clock) as exchange:
        outcomes = await asyncio.gather(*(exchange.submit(an_order(f"order-{n}")) for n in range(300)))
        # The files as a kill would leave them: nothing has been closed.
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{crashed}{suffix}")
    async with running(crashed, clock) as exchange:
        again = await asyncio.gather(*(exchange.submit(an_order(f"order-{n}")) for n in range(300)))
        assert list(map(bare, again)) == list(map(bare, outcomes))
        assert len(await read_reports(exchange, 300)) == 300


async def test_a_new_book_does_not_reuse_the_execution_ids_of_a_lost_one(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        await exchange.submit(an_order("one"))
        [lost] = await read_reports(exchange, 1)
    shutil.rmtree(path.parent)
    clock.advance(SECOND)
    async with running(path, clock) as exchange:
        await exchange.submit(an_order("one"))
        [report] = await read_reports(exchange, 1)
        assert report.exec_id != lost.exec_id


async def test_a_rejection_is_durable_and_does_not_change_with_the_settings(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        accepted = await exchange.submit(an_order("before"))
    async with running(path, clock, reject_all=True) as exchange:
        outcomes = await asyncio.gather(*(exchange.submit(an_order("one")) for _ in range(2)))
        assert outcomes == [VenueRejected("BROKER_REJECTED", "REJECTED_BY_VENUE")] * 2
        assert await exchange.submit(an_order("one")) == VenueRejected("BROKER_REJECTED", "REJECTED_BY_VENUE")
        assert await exchange.submit(an_order("before")) == bare(accepted)
        assert await status(exchange, "one") is None
    async with running(path, clock) as exchange:
        assert await exchange.submit(an_order("one")) == VenueRejected("BROKER_REJECTED", "REJECTED_BY_VENUE")
        assert await exchange.cancel(an_order("one")) == VenueRejected("UNKNOWN_ORDER")
        assert isinstance(await exchange.submit(an_order("two")), Accepted)


async def test_a_second_exchange_on_the_same_book_is_rejected(path: Path, clock: ManualClock) -> None:
    async with running(path, clock):
        with pytest.raises(AlreadyRunning, match=r"paper\.db"):
            async with running(path, clock):
                pass
    async with running(path, clock) as exchange:
        assert isinstance(await exchange.submit(an_order("one")), Accepted)


async def test_a_book_of_another_version_is_rejected(path: Path, clock: ManualClock) -> None:
    async with running(path, clock):
        pass
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(SchemaMismatch, match="99"):
        async with running(path, clock):
            pass


async def test_a_full_exchange_answers_busy_until_there_is_room(path: Path, clock: ManualClock) -> None:
    async with running(path, clock, open_orders_max=2) as exchange:
        orders = [an_order(f"order-{n}", price=FAR) for n in range(3)]
        outcomes = await asyncio.gather(*(exchange.submit(order) for order in orders))
        assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True, False]
        assert outcomes[2] == BUSY
        assert await exchange.submit(orders[0]) == outcomes[0]
        await exchange.cancel(orders[0])
        assert isinstance(await exchange.submit(orders[2]), Accepted)


async def test_a_full_queue_answers_busy(path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "WAITING_MAX", 5)
    async with running(path, clock) as exchange:
        outcomes = await asyncio.gather(*(exchange.submit(an_order(f"order-{n}")) for n in range(8)))
        assert outcomes[5:] == [BUSY] * 3
        assert all(isinstance(outcome, Accepted) for outcome in outcomes[:5])


async def test_a_queue_without_room_for_all_orders_of_a_call_takes_none(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "WAITING_MAX", 5)
    async with running(path, clock) as exchange:
        first, second, third = await asyncio.gather(
            exchange.submit_many([an_order(f"first-{n}") for n in range(4)]),
            exchange.submit_many([an_order(f"second-{n}") for n in range(2)]),
            exchange.submit_many([an_order("third")]),
        )
        assert all(isinstance(outcome, Accepted) for outcome in [*first, *third])
        assert second == [BUSY] * 2
        assert await status(exchange, "second-0") is None
        again = await exchange.submit_many([an_order(f"second-{n}") for n in range(2)])
        assert all(isinstance(outcome, Accepted) for outcome in again)


async def test_the_last_room_goes_to_the_first_orders_of_a_call(path: Path, clock: ManualClock) -> None:
    async with running(path, clock, open_orders_max=2) as exchange:
        outcomes = await exchange.submit_many([an_order(f"order-{n}", price=FAR) for n in range(3)])
        assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True, False]
        assert outcomes[2] == BUSY


async def test_a_call_with_more_orders_than_a_group_is_settled_whole(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "GROUP_MAX", 3)
    async with running(path, clock) as exchange:
        calls = [[an_order(f"{call}-{n}") for n in range(count)] for call, count in enumerate([2, 2, 5, 1])]
        outcomes = await asyncio.gather(*(exchange.submit_many(orders) for orders in calls))
        assert [len(one) for one in outcomes] == [2, 2, 5, 1]
        reported = [report.venue_client_order_id for report in await read_reports(exchange, 10)]
        assert reported == [order.venue_client_order_id for orders in calls for order in orders]


async def test_a_closed_exchange_answers_down_for_every_order_of_a_call(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        waiting = asyncio.create_task(exchange.submit_many([an_order(f"order-{n}") for n in range(3)]))
    assert await exchange.submit_many([an_order("one"), an_order("two")]) == [DOWN] * 2
    assert await waiting == [DOWN] * 3


async def test_a_closed_exchange_answers_down_and_does_not_accept_the_order(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        pass
    assert await exchange.submit(an_order("one")) == DOWN
    async with running(path, clock) as exchange:
        assert await status(exchange, "one") is None


async def test_on_close_every_outcome_agrees_with_the_book(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        calls = [asyncio.create_task(exchange.submit(an_order(f"order-{n}"))) for n in range(3_000)]
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_SECONDS):
        outcomes: Sequence[SendOutcome] = await asyncio.gather(*calls)
    async with running(path, clock) as exchange:
        for number, outcome in enumerate(outcomes):
            found = await exchange.find(by_id(VenueClientOrderId(f"order-{number}")))
            assert bare(outcome) == (DOWN if found is None else Accepted(found.venue_order_id))


async def test_old_reports_are_read_from_the_file(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "RECENT_REPORTS_MAX", 3)
    async with running(path, clock) as exchange:
        for number in range(10):
            await exchange.submit(an_order(f"order-{number}"))
        reports = await read_reports(exchange, 10, limit=4)
        assert [report.venue_client_order_id for report in reports] == [f"order-{n}" for n in range(10)]


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
async def test_a_failed_commit_is_ambiguous_and_a_resend_resolves_it(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    commit = Store.commit

    def failing(store: Store, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Store, "commit", commit)
        if written:
            commit(store, *args, **kwargs)
        raise apsw.IOError("disk failure")

    async with running(path, clock) as exchange:
        monkeypatch.setattr(Store, "commit", failing)
        outcomes = await exchange.submit_many([an_order("one"), an_order("rejected", price="150.0001")])
        assert [type(outcome) for outcome in outcomes] == [Ambiguous] * 2
        found = await exchange.find(by_id(VenueClientOrderId("one")))
        assert (found is not None) == written
        outcome = await exchange.submit(an_order("one"))
        assert isinstance(outcome, Accepted)
        assert found is None or outcome.venue_order_id == found.venue_order_id
        await exchange.submit(an_order("two"))
        assert [report.venue_client_order_id for report in await read_reports(exchange, 2)] == ["one", "two"]


async def test_a_commit_is_synced_to_disk_before_the_outcome_is_returned(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        assert exchange._store is not None
        connection = exchange._store._connection
        # 2 is FULL: the write-ahead log is synced with every commit.
        assert (connection.pragma("synchronous"), connection.pragma("journal_mode")) == (2, "wal")


async def test_an_exchange_whose_book_is_removed_confirms_no_order(path: Path, clock: ManualClock) -> None:
    async with running(path, clock) as exchange:
        assert isinstance(await exchange.submit(an_order("one", price=FAR)), Accepted)
        assert await exchange.probe() == "answered"
        path.with_name("paper.db-wal").unlink()
        assert isinstance(await exchange.submit(an_order("two", price=FAR)), Ambiguous)
        with pytest.raises(VenueUnavailable, match=r"paper\.db-wal was .*restart"):
            await exchange.probe()


async def test_at_the_quotes_of_another_venue_nothing_is_filled_without_one(path: Path, clock: ManualClock) -> None:
    quotes: dict[str, Quote] = {}
    async with running(path, clock, quote=lambda symbol, _: quotes.get(symbol)) as exchange:
        for order in (
            an_order("market", order_type="MARKET", time_in_force="GTC"),
            an_order("limit", price="200", time_in_force="GTC"),
            an_order("ioc", time_in_force="IOC"),
        ):
            assert isinstance(await exchange.submit(order), Accepted)
        [ended] = await read_reports(exchange, 1)
        assert (ended.venue_client_order_id, ended.reason) == ("ioc", "IOC_NOT_FILLED")
        quotes["USDJPY"] = Quote(bid=Decimal(149), ask=Decimal(151), at=clock.now())
        clock.advance(SECOND)
        _, *filled = await read_reports(exchange, 3)
    prices = {report.venue_client_order_id: report.last_price for report in filled}
    assert prices == {"market": Decimal(151), "limit": Decimal(200)}
