"""Rows are read back equal to what was written, on every journal."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import apsw
import msgspec
import pytest

from switchyard.adapters.sqlite.append import PLAIN
from switchyard.adapters.sqlite.rows import json_array
from switchyard.domain.decisions import (
    apply_report,
    begin_attempt,
    record_doubt,
    record_sent,
    record_unsent,
    request_cancel,
)
from switchyard.domain.journal.changes import Change, merged
from switchyard.domain.orders.keys import PLACE_ORDER
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.values import EXACT, canonical
from switchyard.ports.journal import Journal
from tests.support.build import ACCOUNT, WORKER, a_report, an_accept, numbered, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START


async def stored(journal: Journal, *changes: Change) -> OrderState:
    """Commit the changes one after the other and load the state of their order."""
    for change in changes:
        await commit(journal, change)
    order = changes[-1].orders[0]
    by_id = await journal.load([order.order_id])
    assert await journal.load_by_client_order_id([order.venue_client_order_id]) == {
        order.venue_client_order_id: by_id[order.order_id]
    }
    return by_id[order.order_id]


@pytest.mark.parametrize("amount", ["0.00000001", "999999999999999", "999999999999999.12345678", "100", "0.5"])
async def test_amounts_keep_every_digit_and_one_form(journal: Journal, amount: str) -> None:
    exact = canonical(Decimal(amount))

    order = (await stored(journal, an_accept(qty=exact, price=exact))).order

    # Compared as text: equal decimals may have different digits.
    assert [str(order.qty), str(order.price), str(order.filled_qty)] == [str(exact), str(exact), "0"]


async def test_a_filled_notional_is_exact(journal: Journal) -> None:
    accepted = an_accept(qty=Decimal("999999999999999"), price=Decimal("123456789.12345678"))
    state = state_after(accepted)
    part = apply_report(state, None, a_report(state, "PARTIALLY_FILLED", qty=Decimal("123456789012345")), START)

    order = (await stored(journal, accepted, part)).order

    assert order.filled_notional == EXACT.multiply(Decimal("123456789012345"), Decimal("123456789.12345678"))
    assert order == part.orders[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "MARKET", "price": None, "time_in_force": "IOC"},
        {"tags": ("日本", "naïve", "emoji 🚂", 'quote " backslash \\ brace {}', "a,b", "NULL")},
        {"tags": ()},
        {"client_order_id": "Bestellung №1", "strategy": "Ünïcode"},
        {"stop_price": Decimal("1.5"), "type": "STOP_LIMIT"},
        {"time_in_force": "DAY", "expires_at": START + timedelta(hours=7)},
        {"time_in_force": "GTD", "expires_at": START + timedelta(hours=7, microseconds=1)},
        {"post_only": True},
        {"reduce_only": True},
        {"display_qty": Decimal("0.00000001")},
    ],
    ids=[
        "without a price",
        "tags",
        "no tags",
        "labels",
        "stop price",
        "day",
        "gtd",
        "post only",
        "reduce only",
        "iceberg",
    ],
)
@pytest.mark.parametrize("now", [START, START + timedelta(microseconds=70)], ids=["whole second", "fraction"])
async def test_a_new_order_comes_back_as_it_was_written(
    journal: Journal, now: datetime, fields: dict[str, Any]
) -> None:
    accepted = an_accept(now=now, **fields)
    assert await stored(journal, accepted) == numbered(state_after(accepted), 1)


@pytest.mark.parametrize("traceparent", [None, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"])
@pytest.mark.parametrize("now", [START, START + timedelta(microseconds=70)], ids=["whole second", "fraction"])
async def test_an_order_that_begins_with_its_attempt_comes_back_with_its_key(
    database: Database, now: datetime, traceparent: str | None
) -> None:
    accepted = an_accept(key="key", now=now, strategy="trend")
    [row] = accepted.outbox
    accepted = msgspec.structs.replace(accepted, outbox=(msgspec.structs.replace(row, traceparent=traceparent),))
    queued = state_after(accepted)
    begun = begin_attempt(queued, queued.outbox[0], WORKER, now)

    state = await stored(database.journal, merged([accepted, begun]))

    assert state == numbered(OrderState(order=begun.orders[0], outbox=begun.outbox), 1)
    assert await database.keys.entry(ACCOUNT, PLACE_ORDER, "key") == accepted.keys[0]


async def test_an_order_comes_back_as_each_step_left_it(journal: Journal) -> None:
    accepted = an_accept(key="key")
    changes = [accepted]
    state = state_after(accepted)
    later = START + timedelta(seconds=1, microseconds=123456)

    def take(change: Change | None) -> None:
        nonlocal state
        assert change is not None
        changes.append(change)
        state = state_after(*changes)

    take(begin_attempt(state, state.row("new", 1), WORKER, later))
    take(
        record_unsent(
            state, state.row("new", 1), "BROKER_DOWN", later + timedelta(seconds=2), later, detail="refusé: “non”"
        )
    )
    take(begin_attempt(state, state.row("new", 1), WORKER, later))
    take(record_sent(state, state.row("new", 1), "venue-1", later))
    take(request_cancel(state, later))
    take(begin_attempt(state, state.row("cancel", 1), WORKER, later))
    take(record_doubt(state, state.row("cancel", 1), "NETWORK_TIMEOUT", None, later))
    take(apply_report(state, None, a_report(state, "CANCELED", qty=Decimal(0)), later))

    assert await stored(journal, *changes) == numbered(state, 1, 6)
    assert [row.kind for row in state.outbox] == ["new", "cancel"]


async def test_times_are_kept_to_the_microsecond_in_utc(journal: Journal) -> None:
    tokyo = START.astimezone(timezone(timedelta(hours=9))) + timedelta(microseconds=1)
    accepted = an_accept(now=tokyo)

    state = await stored(journal, accepted)

    assert state.order.accepted_at == START + timedelta(microseconds=1)
    assert state.outbox[0].next_attempt_at.tzinfo is not None


async def test_a_time_on_a_whole_second_compares_like_any_other(database: Database) -> None:
    assert START.microsecond == 0
    accepted = an_accept(key="key", now=START)
    await commit(database.journal, accepted)
    tick = timedelta(microseconds=1)

    async def created_after(since: datetime) -> int:
        return len(await database.keys.entries(ACCOUNT, PLACE_ORDER, "key", "key", since, 10))

    assert [await created_after(START - tick), await created_after(START), await created_after(START + tick)] == [
        1,
        0,
        0,
    ]
    attempt = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    await commit(database.journal, attempt)
    await commit(database.journal, record_unsent(state_after(attempt), attempt.outbox[0], "BROKER_DOWN", START, START))
    due = [len(await database.queries.due(now, 10)) for now in (START - tick, START, START + tick)]
    assert due == [0, 1, 1]


async def test_only_the_orders_that_exist_are_loaded(journal: Journal) -> None:
    first, second, missing = an_accept(), an_accept(), an_accept()
    await commit(journal, first, second)

    found = await journal.load([change.orders[0].order_id for change in (second, missing, first)])

    assert found == {
        change.orders[0].order_id: numbered(state_after(change), seq) for seq, change in enumerate((first, second), 1)
    }
    assert await journal.load_by_client_order_id([missing.orders[0].venue_client_order_id]) == {}


@pytest.mark.parametrize("table", PLAIN)
def test_the_program_on_sqlite_writes_the_usual_values_as_the_encoder_does(table: str) -> None:
    connection = apsw.Connection(":memory:")
    for column, (value, text) in PLAIN[table].usual.items():
        sql = f"SELECT {text} IS value->>0, typeof({text}) = typeof(value->>0) FROM jsonb_each(?)"
        assert connection.execute(sql, (json_array([(value,)]),)).get == (1, 1), column
