"""Limits are checked and reserved inside the append, on every engine."""

import asyncio
from datetime import date, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import msgspec
import pytest

from switchyard.domain.accounts.positions import Position
from switchyard.domain.decisions import apply_report, begin_attempt, record_doubt, request_cancel
from switchyard.domain.ids import AccountId, OrderId, order_id
from switchyard.domain.journal.changes import Change, Committed, Conflict
from switchyard.domain.journal.lines import AuditLine
from switchyard.domain.journal.replay import Replay
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.claims import Breach, Claim, Limits, Terms
from switchyard.domain.risk.exposure import CurrencyReserve, SymbolExposure, Totals
from switchyard.ports.journal import PAGE_MAX
from tests.support.build import ACCOUNT, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START

_groups = count(1)
TEN = Decimal(10)


def a_claim(limits: Limits, *, reducing: bool = False, since: OrderId | None = None, **request: Any) -> Change:
    """The acceptance of an order of 10 at 100, so a notional of 1,000 JPY, that has limits to keep."""
    body: dict[str, Any] = {"qty": TEN, "price": Decimal(100)} | request
    change = an_accept(terms=Terms(currency="JPY", price=body["price"], reducing=reducing), **body)
    [order] = change.orders
    claim = Claim(order_id=order.order_id, limits=limits, day=START.date(), since=since)
    return msgspec.structs.replace(change, claims=(claim,))


async def outcomes(database: Database, *changes: Change) -> list[Breach | str]:
    """Append as one group; the breach, or what became of each change."""
    appended = await database.journal.append(0, f"claims-{next(_groups)}", list(changes), START)
    return ["committed" if isinstance(outcome, Committed) else outcome.breach or "conflict" for outcome in appended]


async def reserved(database: Database, account: str = ACCOUNT) -> dict[tuple[str, str], Totals]:
    exposure = await database.journal.account_exposure(AccountId(account))
    return {key: totals.canonical() for key, totals in exposure.totals.items() if totals.open_orders}


async def fill(
    database: Database,
    state: OrderState,
    qty: Decimal,
    *,
    price: Decimal | None = None,
    day: date | None = None,
) -> OrderState:
    """Fill a part of an order, and return its state after that."""
    key = (state.order.account_id, state.order.symbol)
    held: Position | None = (await database.journal.load_positions([key])).get(key)
    report = a_report(state, "PARTIALLY_FILLED", exec_id=f"exec-{next(_groups)}", qty=qty)
    if price is not None:
        report = msgspec.structs.replace(report, last_price=price)
    filled = apply_report(state, held, report, START, day=day)
    await commit(database.journal, filled)
    return OrderState(order=filled.orders[-1], outbox=(filled.outbox or state.outbox))


async def hold(database: Database, side: str, qty: int, price: int = 100, **request: Any) -> None:
    """Bring the account into a position."""
    bought = a_claim(Limits(), side=side, qty=Decimal(qty), price=Decimal(price), **request)
    await commit(database.journal, bought)
    await fill(database, state_after(bought), Decimal(qty))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(open_orders=2), Breach("LIMIT_OPEN_ORDERS", Decimal(3), Decimal(2))),
        (Limits(symbol_open_orders=2), Breach("LIMIT_OPEN_ORDERS", Decimal(3), Decimal(2), True)),
        (Limits(open_notional=Decimal(2999)), Breach("LIMIT_OPEN_NOTIONAL", Decimal(3000), Decimal(2999))),
        (
            Limits(symbol_open_notional=Decimal("2999.99999999")),
            Breach("LIMIT_OPEN_NOTIONAL", Decimal(3000), Decimal("2999.99999999"), True),
        ),
        (Limits(position=Decimal(29)), Breach("LIMIT_POSITION", Decimal(30), Decimal(29), True)),
        (Limits(gross_exposure=Decimal(2999)), Breach("LIMIT_GROSS_EXPOSURE", Decimal(3000), Decimal(2999))),
        (
            Limits(symbol_gross_exposure=Decimal(2999)),
            Breach("LIMIT_GROSS_EXPOSURE", Decimal(3000), Decimal(2999), True),
        ),
    ],
    ids=lambda value: value.reason if isinstance(value, Breach) else "",
)
@pytest.mark.parametrize("grouped", [True, False], ids=["one group", "one by one"])
async def test_the_third_order_breaches(database: Database, limits: Limits, expected: Breach, grouped: bool) -> None:
    changes = [a_claim(limits) for _ in range(3)]
    if grouped:
        judged = await outcomes(database, *changes)
    else:
        judged = [outcome for change in changes for outcome in await outcomes(database, change)]

    assert judged == ["committed", "committed", expected]
    assert await reserved(database) == {("USDJPY", "JPY"): Totals(2, Decimal(20), Decimal(0), Decimal(2000))}


async def test_a_breach_does_not_take_room_from_the_next_claim(database: Database) -> None:
    limits = Limits(open_notional=Decimal(1500))

    judged = await outcomes(
        database, a_claim(limits), a_claim(limits), a_claim(limits, qty=Decimal(5)), a_claim(limits, qty=Decimal(1))
    )

    assert judged == [
        "committed",
        Breach("LIMIT_OPEN_NOTIONAL", Decimal(2000), Decimal(1500)),
        "committed",
        Breach("LIMIT_OPEN_NOTIONAL", Decimal(1600), Decimal(1500)),
    ]


async def test_a_group_in_which_all_breach_writes_nothing(database: Database) -> None:
    judged = await outcomes(database, a_claim(Limits(open_orders=0)), a_claim(Limits(position=Decimal(1))))

    assert [breach.reason for breach in judged if isinstance(breach, Breach)] == ["LIMIT_OPEN_ORDERS", "LIMIT_POSITION"]
    assert await reserved(database) == {}
    assert (await database.journal.head(0)).seq == 0


async def test_a_repeated_group_gets_the_same_breach(database: Database) -> None:
    limits = Limits(open_orders=1)
    group = [a_claim(limits), a_claim(limits)]

    first = await database.journal.append(0, "group", group, START)

    assert first[1] == Conflict(breach=Breach("LIMIT_OPEN_ORDERS", Decimal(2), Decimal(1)))
    assert await database.journal.append(0, "group", group, START) == first
    assert (await reserved(database))["USDJPY", "JPY"].open_orders == 1


async def test_a_taken_key_goes_before_a_breach(database: Database) -> None:
    limits = Limits(open_orders=1)
    first = a_claim(limits, key="key")
    await commit(database.journal, first)

    [outcome] = await database.journal.append(0, "again", [a_claim(limits, key="key")], START)

    assert outcome == Conflict(first.keys[0])


async def test_limits_of_an_account_are_over_its_symbols_and_per_currency(database: Database) -> None:
    limits = Limits(open_orders=3, open_notional=Decimal(1500))
    dollars = a_claim(limits, symbol="EURUSD")
    dollars = msgspec.structs.replace(dollars, orders=(msgspec.structs.replace(dollars.orders[0], currency="USD"),))

    judged = await outcomes(
        database,
        a_claim(limits),
        a_claim(limits, symbol="EURJPY"),
        dollars,
        a_claim(limits, symbol="EURJPY", qty=Decimal(5)),
        a_claim(limits, account="acc-2"),
        a_claim(limits, qty=Decimal(1), price=Decimal(1)),
    )

    assert judged == [
        "committed",
        Breach("LIMIT_OPEN_NOTIONAL", Decimal(2000), Decimal(1500)),
        "committed",
        "committed",
        "committed",
        Breach("LIMIT_OPEN_ORDERS", Decimal(4), Decimal(3)),
    ]


async def test_a_fill_takes_its_part_and_the_end_releases_the_rest(database: Database) -> None:
    accepted = a_claim(Limits(open_orders=5))
    await commit(database.journal, accepted)

    state = await fill(database, state_after(accepted), Decimal(4))

    assert await reserved(database) == {("USDJPY", "JPY"): Totals(1, Decimal(6), Decimal(0), Decimal(600))}
    assert await database.journal.reserved() == {"JPY": CurrencyReserve(1, Decimal(600))}
    assert await database.journal.symbol_exposure(ACCOUNT, "USDJPY") == SymbolExposure(Decimal(4), Decimal(6))
    ended = apply_report(state, None, a_report(state, "CANCELED", exec_id="end", qty=Decimal(0)), START)
    await commit(database.journal, ended)
    assert await reserved(database) == {}
    assert await database.journal.reserved() == {}


async def test_an_order_in_doubt_keeps_its_reservation(database: Database) -> None:
    limits = Limits(open_notional=Decimal(1000))
    accepted = a_claim(limits)
    await commit(database.journal, accepted)
    sending = begin_attempt(state_after(accepted), state_after(accepted).row("new", 1), WORKER, START)
    await commit(database.journal, sending)
    state = state_after(accepted, sending)
    doubt = record_doubt(state, state.row("new", 1), "NETWORK_TIMEOUT", None, START)
    await commit(database.journal, doubt)
    assert doubt.orders[0].status == "UNKNOWN"

    [breach] = await outcomes(database, a_claim(limits))

    assert breach == Breach("LIMIT_OPEN_NOTIONAL", Decimal(2000), Decimal(1000))
    state = state_after(accepted, doubt)
    end = apply_report(state, None, a_report(state, "REJECTED", qty=Decimal(0)), START)
    await commit(database.journal, end)
    assert await outcomes(database, a_claim(limits)) == ["committed"]


async def test_a_cancel_is_never_limited_and_releases(database: Database) -> None:
    limits = Limits(open_orders=1)
    accepted = a_claim(limits)
    await commit(database.journal, accepted)
    canceled = request_cancel(state_after(accepted), START)
    assert canceled is not None

    await commit(database.journal, canceled)

    assert await outcomes(database, a_claim(limits)) == ["committed"]


async def test_totals_of_orders_from_before_the_first_claim_count(database: Database) -> None:
    earlier = msgspec.structs.replace(a_claim(Limits()), claims=())
    ended = msgspec.structs.replace(a_claim(Limits()), claims=())
    await commit(database.journal, earlier, ended)
    canceled = request_cancel(state_after(ended), START)
    assert canceled is not None
    await commit(database.journal, canceled)
    assert await reserved(database) == {("USDJPY", "JPY"): Totals(1, TEN, Decimal(0), Decimal(1000))}

    [breach] = await outcomes(database, a_claim(Limits(open_notional=Decimal(1999))))

    assert breach == Breach("LIMIT_OPEN_NOTIONAL", Decimal(2000), Decimal(1999))


class TestReducing:
    async def test_a_reducing_order_passes_every_limit(self, database: Database) -> None:
        await hold(database, "BUY", 10)
        tight = Limits(
            open_orders=0,
            symbol_open_orders=0,
            open_notional=Decimal(1),
            position=Decimal(1),
            gross_exposure=Decimal(1),
            daily_loss=Decimal(1),
            window_orders=0,
        )

        assert await outcomes(database, a_claim(tight, side="SELL", reducing=True)) == ["committed"]
        totals = (await reserved(database))["USDJPY", "JPY"]
        sold = {"sell_qty": TEN, "reducing_sell_qty": TEN, "reducing_sells": Decimal(1000)}
        assert totals == Totals(1, notional=Decimal(1000), **sold)

    @pytest.mark.parametrize("side", ["BUY", "SELL"])
    async def test_open_reducing_orders_never_cross_zero(self, database: Database, side: str) -> None:
        await hold(database, side, 10)
        other = "SELL" if side == "BUY" else "BUY"

        judged = await outcomes(
            database,
            a_claim(Limits(), side=other, qty=Decimal(6), reducing=True),
            a_claim(Limits(), side=other, qty=Decimal(5), reducing=True),
            a_claim(Limits(), side=other, qty=Decimal(4), reducing=True),
            a_claim(Limits(), side=other, qty=Decimal(1), reducing=True),
            a_claim(Limits(), side=side, qty=Decimal(1), reducing=True),
        )

        reasons = [outcome.reason if isinstance(outcome, Breach) else outcome for outcome in judged]
        assert reasons == ["committed", "NOT_REDUCING", "committed", "NOT_REDUCING", "NOT_REDUCING"]

    async def test_an_open_order_of_the_same_side_counts_although_it_is_not_reducing(self, database: Database) -> None:
        await hold(database, "BUY", 10)
        await commit(database.journal, a_claim(Limits(), side="SELL", qty=Decimal(8)))

        [crossing] = await outcomes(database, a_claim(Limits(), side="SELL", qty=Decimal(3), reducing=True))
        assert isinstance(crossing, Breach) and crossing.reason == "NOT_REDUCING"
        assert await outcomes(database, a_claim(Limits(), side="SELL", qty=Decimal(2), reducing=True)) == ["committed"]

    async def test_without_a_position_nothing_is_reducing(self, database: Database) -> None:
        [breach] = await outcomes(database, a_claim(Limits(), side="SELL", reducing=True))
        assert isinstance(breach, Breach) and breach.reason == "NOT_REDUCING"

    @pytest.mark.parametrize("of_symbol", [False, True], ids=["account", "symbol"])
    @pytest.mark.parametrize(("filled", "room"), [(5, 30), (10, 30), (15, 20), (20, 10)])
    @pytest.mark.parametrize("side", ["BUY", "SELL"])
    async def test_an_order_whose_position_others_have_closed_counts_as_exposure(
        self, database: Database, side: str, filled: int, room: int, of_symbol: bool
    ) -> None:
        await hold(database, side, 20)
        other = "SELL" if side == "BUY" else "BUY"
        await commit(database.journal, a_claim(Limits(), side=other, qty=Decimal(20), reducing=True))
        sold = a_claim(Limits(), side=other, qty=Decimal(20))
        await commit(database.journal, sold)
        await fill(database, state_after(sold), Decimal(filled))
        # The position and the rest of the second order; what the first one may open comes to it.
        limit = Decimal(100 * (20 - filled) * 2 + 3000)
        limits = Limits(symbol_gross_exposure=limit) if of_symbol else Limits(gross_exposure=limit)

        judged = [
            outcome if isinstance(outcome, str) else outcome.reason
            for qty in (room + 1, room)
            for outcome in await outcomes(database, a_claim(limits, side=other, qty=Decimal(qty)))
        ]

        assert judged == ["LIMIT_GROSS_EXPOSURE", "committed"]


class TestPosition:
    async def test_the_worst_case_of_the_side_counts(self, database: Database) -> None:
        await hold(database, "BUY", 10)
        limits = Limits(position=Decimal(15))

        judged = await outcomes(
            database,
            a_claim(limits, qty=Decimal(6)),
            a_claim(limits, qty=Decimal(5)),
            a_claim(limits, qty=Decimal(1)),
            a_claim(limits, side="SELL", qty=Decimal(25)),
            a_claim(limits, side="SELL", qty=Decimal(1)),
        )

        assert judged == [
            Breach("LIMIT_POSITION", Decimal(16), Decimal(15), True),
            "committed",
            Breach("LIMIT_POSITION", Decimal(16), Decimal(15), True),
            "committed",
            Breach("LIMIT_POSITION", Decimal(16), Decimal(15), True),
        ]

    async def test_gross_exposure_has_positions_at_cost_and_open_orders(self, database: Database) -> None:
        await hold(database, "SELL", 10, 90, symbol="EURJPY")
        await commit(database.journal, a_claim(Limits(), side="BUY", symbol="EURJPY", qty=Decimal(4), reducing=True))
        account, symbol = Limits(gross_exposure=Decimal(1900)), Limits(symbol_gross_exposure=Decimal(1900))

        judged = await outcomes(
            database,
            a_claim(account, qty=Decimal(11)),
            a_claim(account),
            a_claim(symbol, symbol="EURJPY", side="SELL", qty=Decimal(11)),
            a_claim(symbol, symbol="EURJPY", side="SELL"),
        )

        assert judged == [
            Breach("LIMIT_GROSS_EXPOSURE", Decimal(2000), Decimal(1900)),
            "committed",
            Breach("LIMIT_GROSS_EXPOSURE", Decimal(2000), Decimal(1900), True),
            "committed",
        ]


class TestDailyLoss:
    async def lose(self, database: Database, day: date | None = None) -> None:
        """Buy 10 at 100 and sell them at 90."""
        await hold(database, "BUY", 10)
        sold = a_claim(Limits(), side="SELL")
        await commit(database.journal, sold)
        await fill(database, state_after(sold), TEN, price=Decimal(90), day=day)

    async def test_a_reached_loss_blocks(self, database: Database) -> None:
        await self.lose(database)

        assert await outcomes(database, a_claim(Limits(daily_loss=Decimal("100.01")))) == ["committed"]
        judged = await outcomes(database, a_claim(Limits(daily_loss=Decimal(100)), symbol="EURJPY"))
        assert judged == [Breach("LIMIT_DAILY_LOSS", Decimal(100), Decimal(100))]

    async def test_the_loss_of_another_day_does_not_count(self, database: Database) -> None:
        await self.lose(database, START.date() + timedelta(days=1))
        assert await outcomes(database, a_claim(Limits(daily_loss=Decimal(1)))) == ["committed"]

    async def test_a_replay_gives_the_same_day_and_result(self, database: Database) -> None:
        await self.lose(database, START.date() + timedelta(days=1))
        replay = Replay()
        for event in await database.journal.read(0, 0, PAGE_MAX):
            replay.apply(msgspec.json.decode(event.line, type=AuditLine))
        key = (ACCOUNT, "USDJPY")
        position = (await database.journal.load_positions([key]))[key]
        assert (position.day, position.day_pnl) == (START.date() + timedelta(days=1), Decimal(-100))
        assert replay.positions[key] == position

    async def test_another_account_and_another_currency_do_not_count(self, database: Database) -> None:
        await self.lose(database)
        limits = Limits(daily_loss=Decimal(1))
        dollars = a_claim(limits)
        dollars = msgspec.structs.replace(dollars, orders=(msgspec.structs.replace(dollars.orders[0], currency="USD"),))
        assert await outcomes(database, dollars, a_claim(limits, account="acc-2")) == ["committed", "committed"]


async def test_orders_per_window_slide(database: Database) -> None:
    def at(seconds: float) -> Change:
        now = START + timedelta(seconds=seconds)
        since = order_id(int((now - timedelta(seconds=10)).timestamp() * 1000) + 1, 0)
        return a_claim(Limits(window_orders=2), since=since, now=now)

    assert await outcomes(database, at(0), at(4)) == ["committed", "committed"]
    assert await outcomes(database, at(9)) == [Breach("LIMIT_ORDERS_PER_WINDOW", Decimal(3), Decimal(2))]
    assert await outcomes(database, at(10.001)) == ["committed"]
    assert await outcomes(database, at(10.002)) == [Breach("LIMIT_ORDERS_PER_WINDOW", Decimal(3), Decimal(2))]
    assert await outcomes(database, at(14.001)) == ["committed"]


async def test_concurrent_groups_never_exceed_a_limit(database: Database) -> None:
    limits = Limits(open_notional=Decimal(25_000))
    groups = [[a_claim(limits) for _ in range(7)] for _ in range(12)]

    judged = await asyncio.gather(*(outcomes(database, *group) for group in groups))

    flat = [outcome for group in judged for outcome in group]
    assert flat.count("committed") == 25
    assert (await reserved(database))["USDJPY", "JPY"].notional == Decimal(25_000)
