"""What an account has open, on every engine, and the cancel of more orders than one request takes."""

from decimal import Decimal
from itertools import count
from typing import Any

from switchyard.domain.decisions import (
    apply_report,
    begin_attempt,
    record_doubt,
    record_rejected,
    record_sent,
    request_cancel,
)
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.closing import ORDERS_MAX, CancelAllRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.ports.queries import UnfinishedFilter
from tests.support.build import ACCOUNT, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START, ManualClock
from tests.support.services import GatewayServices

_numbers = count(1)


async def moved(database: Database, *changes: Change) -> OrderState:
    """Commit the changes of one order; returns its state."""
    for change in changes:
        await commit(database.journal, change)
    return state_after(*changes)


async def test_unfinished_orders_are_those_that_have_not_ended_whatever_their_state(database: Database) -> None:
    queued = await moved(database, an_accept(symbol="EURUSD", strategy="carry"))
    accepted = an_accept()
    begun = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    sending = await moved(database, accepted, begun)
    accepted = an_accept(venue=VenueName("other"))
    begun = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    doubt = record_doubt(state_after(accepted, begun), begun.outbox[0], "NETWORK_TIMEOUT", None, START)
    doubtful = await moved(database, accepted, begun, doubt)
    accepted = an_accept()
    begun = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    sent = record_sent(state_after(accepted, begun), begun.outbox[0], "venue-1", START)
    working = await moved(database, accepted, begun, sent)
    accepted = an_accept()
    begun = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    rejected = record_rejected(state_after(accepted, begun), begun.outbox[0], "BAD_REQUEST", START)
    await moved(database, accepted, begun, rejected)
    accepted = an_accept()
    cancelled = request_cancel(state_after(accepted), START)
    assert cancelled is not None
    await moved(database, accepted, cancelled)
    await moved(database, an_accept(account="another"))

    async def found(**wanted: Any) -> list[OrderState]:
        page = await database.accounts.unfinished_orders(UnfinishedFilter(account_id=ACCOUNT, **wanted))
        states = await database.journal.load([order.order_id for order in page])
        assert [states[order.order_id].order for order in page] == page
        return [states[order.order_id] for order in page]

    def ids(states: list[OrderState]) -> list[str]:
        return [state.order.order_id for state in states]

    everything = ids([queued, sending, doubtful, working])
    assert ids(await found()) == everything
    assert ids(await found(limit=3)) == everything[:3]
    assert ids(await found(limit=3, after=everything[1])) == everything[2:]
    assert ids(await found(symbol="EURUSD")) == ids(await found(strategy="carry")) == ids([queued])
    assert ids(await found(venue="other")) == ids([doubtful])
    assert await found(venue="other", symbol="EURUSD") == []


async def test_open_positions_are_those_that_are_not_flat(database: Database) -> None:
    for symbol, sold in (("USDJPY", 0), ("EURUSD", 1000), ("GBPUSD", 400)):
        for side, qty in (("BUY", 1000), ("SELL", sold)):
            if not qty:
                continue
            placed = an_accept(symbol=symbol, side=side, qty=Decimal(qty))
            await commit(database.journal, placed)
            held = (await database.journal.load_positions([(ACCOUNT, symbol)])).get((ACCOUNT, symbol))
            report = a_report(state_after(placed), exec_id=f"accounts-{next(_numbers)}")
            await commit(database.journal, apply_report(state_after(placed), held, report, START))

    positions = await database.accounts.open_positions(ACCOUNT, limit=10)

    assert [(position.symbol, position.qty) for position in positions] == [
        ("GBPUSD", Decimal(600)),
        ("USDJPY", Decimal(1000)),
    ]
    assert await database.accounts.open_positions(ACCOUNT, after="GBPUSD", limit=10) == positions[1:]
    assert await database.accounts.open_positions(ACCOUNT, limit=1) == positions[:1]
    assert await database.accounts.open_positions(AccountId("another"), limit=10) == []


async def test_more_orders_than_one_request_takes_are_cancelled_page_by_page(database: Database) -> None:
    changes = [an_accept() for _ in range(ORDERS_MAX + 3)]
    await database.journal.append(0, f"accounts-{next(_numbers)}", changes, START)
    service = GatewayServices(database, ManualClock()).services.cancel_all
    expected = [change.orders[0].order_id for change in changes]

    first, _ = await service.cancel_all(ACCOUNT, {}, "one")
    repeated, is_repeat = await service.cancel_all(ACCOUNT, {}, "one")
    second, _ = await service.cancel_all(ACCOUNT, {"cursor": first.next_cursor}, "two")

    assert [order.order_id for order in first.orders] == expected[:ORDERS_MAX]
    assert (first.next_cursor, first.requested, first.ended) == (expected[ORDERS_MAX - 1], 0, ORDERS_MAX)
    assert (repeated, is_repeat) == (first, True)
    assert [order.order_id for order in second.orders] == expected[ORDERS_MAX:]
    assert second.next_cursor is None
    assert await database.accounts.unfinished_orders(UnfinishedFilter(account_id=ACCOUNT)) == []


async def test_a_repeat_cancels_what_the_first_request_could_not(database: Database) -> None:
    changes = [an_accept() for _ in range(3)]
    await database.journal.append(0, f"accounts-{next(_numbers)}", changes, START)
    service = GatewayServices(database, ManualClock()).services.cancel_all
    plan, _ = await service._plan_of(ACCOUNT, CancelAllRequest(), "key")  # the process dies after this commit
    await commit(database.journal, an_accept())

    result, is_repeat = await GatewayServices(database, ManualClock()).services.cancel_all.cancel_all(
        ACCOUNT, {}, "key"
    )

    assert is_repeat
    assert [(order.order_id, order.result) for order in result.orders] == [
        (order_id, "CANCELED") for order_id in plan.orders
    ]
    assert len(await database.accounts.unfinished_orders(UnfinishedFilter(account_id=ACCOUNT))) == 1
