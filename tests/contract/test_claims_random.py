"""The same random history on every engine: the same outcomes as in memory, and totals that are the sum of the rows."""

import random
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.queries import PostgresOrderDump
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.decisions import (
    apply_report,
    record_amend_refused,
    record_amended,
    request_amend,
    request_cancel,
)
from switchyard.domain.errors import RequestError
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.orders.amends import Amend, last_id, open_amend
from switchyard.domain.orders.keys import AMEND_ORDER
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.claims import Claim, Limits, reserved
from switchyard.domain.risk.exposure import summed
from tests.support.build import a_report, an_accept, an_entry
from tests.support.databases import Database, run_sql
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.postgres import PostgresServer
from tests.support.upgraded import upgraded_database

ACCOUNTS = ("acc-1", "acc-2")
CURRENCIES = {"USDJPY": "JPY", "EURJPY": "JPY", "EURUSD": "USD"}
STEPS = 60


class History:
    """Makes random groups, and appends each to both databases."""

    def __init__(self, database: Database, seed: int) -> None:
        self.random = random.Random(seed)
        self.databases = (MemoryDatabase(ManualClock()), database)
        self.orders: list[OrderId] = []
        self.numbers = 0
        self.since: OrderId | None = None
        """The beginning of the window, which moves forward."""

    async def step(self) -> list[Outcome]:
        moved: set[Any] = set()
        if self.orders:
            self.since = max(self.random.choice(self.orders[-20:]), self.since or self.orders[0])
        group = [change for _ in range(self.random.randint(1, 6)) if (change := await self.change(moved)) is not None]
        self.numbers += 1
        if not group:
            return []
        expected, found = [
            await database.journal.append(0, f"group-{self.numbers}", group, START) for database in self.databases
        ]
        assert found == expected
        for change, outcome in zip(group, found, strict=True):
            if isinstance(outcome, Committed) and change.claims and change.orders[0].version == 1:
                self.orders.append(change.orders[0].order_id)
        return found

    async def change(self, moved: set[Any]) -> Change | None:
        if not self.orders or self.random.random() < 0.6:
            return self.claim()
        order_id = self.random.choice(self.orders)
        journal = self.databases[0].journal
        state = (await journal.load([order_id]))[order_id]
        key = (state.order.account_id, state.order.symbol)
        if is_final(state.order.status) or order_id in moved or key in moved:
            return None
        moved |= {order_id, key}
        if self.random.random() < 0.5 and (amended := self.amend(state)) is not None:
            return amended
        if self.random.random() < 0.3:
            return request_cancel(state, START)
        rest = state.order.qty - state.order.filled_qty
        report = a_report(state, "PARTIALLY_FILLED", exec_id=f"{order_id}-{self.numbers}", qty=self.part_of(rest))
        price = Decimal(self.random.randint(1, 400)) / 4
        held = (await journal.load_positions([key])).get(key)
        return apply_report(state, held, msgspec.structs.replace(report, last_price=price), START)

    def amend(self, state: OrderState) -> Change | None:
        """Request an amend, or settle the one that is under way."""
        row, order = open_amend(state), state.order
        if row is not None:
            if self.random.random() < 0.5:
                return record_amended(state, row, None, START)
            return record_amend_refused(state, row, "ORDER_FINAL", START)
        self.numbers += 1
        price = self.random.choice((order.price, Decimal(self.random.randint(1, 400)) / 4))
        amend = Amend(
            client_order_id=VenueClientOrderId(f"amend-{self.numbers}-{order.order_id}"),
            orig_client_order_id=last_id(state),
            qty=order.filled_qty + self.random.randint(1, 24),
            price=price,
            reserve_price=self.random.choice((price, None)),
            operation=AMEND_ORDER,
            key=f"key-{self.numbers}",
        )
        key = msgspec.structs.replace(an_entry(amend.key, order.order_id), operation=AMEND_ORDER)
        limits = msgspec.structs.replace(self.limits(), open_orders=None, symbol_open_orders=None, window_orders=None)
        claim = Claim(
            order_id=order.order_id,
            limits=limits,
            day=START.date(),
            before=reserved(order),
            was_reducing=order.reducing,
        )
        try:
            is_reducing = self.random.random() < 0.7
            return request_amend(state, amend, key, START, reducing=is_reducing, claim=claim)
        except RequestError:
            return None

    def part_of(self, rest: Decimal) -> Decimal:
        return min(rest, Decimal(self.random.randint(1, 12)))

    def claim(self) -> Change:
        symbol = self.random.choice(list(CURRENCIES))
        change = an_accept(
            account=self.random.choice(ACCOUNTS),
            symbol=symbol,
            side=self.random.choice(("BUY", "SELL")),
            qty=Decimal(self.random.randint(1, 12)),
            price=Decimal(self.random.randint(1, 400)) / 4,
        )
        order = msgspec.structs.replace(
            change.orders[0],
            currency=CURRENCIES[symbol],
            reserve_price=self.random.choice((change.orders[0].price, None)),
            multiplier=Decimal(self.random.choice(("1", "0.1", "25"))),
            reducing=self.random.random() < 0.3,
        )
        whole = order.reducing and self.random.random() < 0.3
        claim = Claim(order_id=order.order_id, limits=self.limits(), day=START.date(), since=self.since, whole=whole)
        return msgspec.structs.replace(change, orders=(order,), claims=(claim,))

    def limits(self) -> Limits:
        bounds: dict[str, Any] = {
            "open_orders": self.random.randint(5, 40),
            "symbol_open_orders": self.random.randint(3, 15),
            "open_notional": Decimal(self.random.randint(1_000, 30_000)),
            "symbol_open_notional": Decimal(self.random.randint(1_000, 20_000)),
            "position": Decimal(self.random.randint(10, 80)),
            "gross_exposure": Decimal(self.random.randint(2_000, 60_000)),
            "symbol_gross_exposure": Decimal(self.random.randint(2_000, 30_000)),
            "daily_loss": Decimal(self.random.randint(200, 4_000)),
            "window_orders": self.random.randint(2, 30),
        }
        chosen = self.random.sample(list(bounds), self.random.randint(0, 4))
        return Limits(**{name: bounds[name] for name in chosen})

    async def check_totals(self) -> None:
        memory, database = self.databases
        expected = summed(memory.journal.orders.values())
        for account in map(AccountId, ACCOUNTS):
            exposure = await database.journal.account_exposure(account)
            found = {(account, *key): totals.canonical() for key, totals in exposure.totals.items()}
            assert {key: totals for key, totals in found.items() if totals.open_orders} == {
                key: totals for key, totals in expected.items() if key[0] == account
            }
            reference = await memory.journal.account_exposure(account)
            assert exposure.positions == reference.positions
            for currency in ("JPY", "USD"):
                assert exposure.gross(currency) == reference.gross(currency)
                assert exposure.day_loss(currency, START.date()) == reference.day_loss(currency, START.date())


async def forget_totals(database: Database) -> None:
    """Make the engine compute its totals from the rows again, as after a restart or a rebuild."""
    if isinstance(database, PostgresDatabase):
        await run_sql(database, "UPDATE journal_heads SET keeps_exposures = false")
    elif isinstance(database, SqliteDatabase):
        database.journal._claims.forget()


@pytest.mark.parametrize("seed", range(6))
async def test_every_engine_judges_alike(database: Database, seed: int) -> None:
    history = History(database, seed)
    reasons: list[str] = []
    for _ in range(STEPS):
        for outcome in await history.step():
            if not isinstance(outcome, Committed):
                assert outcome.breach is not None
                reasons.append(outcome.breach.reason)
    await history.check_totals()
    await forget_totals(database)
    await history.check_totals()
    assert len(set(reasons)) >= 4, "the history is too easy to show anything"


async def test_the_unfinished_orders_are_those_that_have_not_ended(postgres_server: PostgresServer) -> None:
    url = await upgraded_database(postgres_server)
    database, dump = await PostgresDatabase.open(url), PostgresOrderDump(url)
    history = History(database, 1)
    for _ in range(60):
        await history.step()
    orders = [order async for order in dump.all_orders()]
    unfinished = [
        order_id for (order_id,) in await run_sql(database, "SELECT order_id FROM unfinished_orders ORDER BY 1")
    ]
    assert unfinished == [order.order_id for order in orders if not is_final(order.status)]
    assert 0 < len(unfinished) < len(orders), "the history is too easy to show anything"

    assert await dump.wrong_unfinished() == []

    [ended] = [order for order in orders if is_final(order.status)][:1]
    values = f"'{ended.order_id}', '{ended.account_id}', '{ended.venue}'"
    await run_sql(database, f"INSERT INTO unfinished_orders (order_id, account_id, venue) VALUES ({values})")
    await run_sql(database, f"DELETE FROM unfinished_orders WHERE order_id = '{unfinished[0]}'")
    await run_sql(database, f"UPDATE unfinished_orders SET venue = 'elsewhere' WHERE order_id = '{unfinished[1]}'")
    await run_sql(database, "INSERT INTO unfinished_orders VALUES ('ord_none', 'nobody', 'sim')")
    wrong = [ended.order_id, unfinished[0], unfinished[1], "ord_none"]
    assert await dump.wrong_unfinished() == sorted(wrong)
    await run_sql(database, "SELECT set_unfinished_orders()")  # as the command says
    assert await dump.wrong_unfinished() == []
    await database.close()


async def test_totals_that_are_not_those_of_the_orders_are_found(postgres_server: PostgresServer) -> None:
    url = await upgraded_database(postgres_server)
    database, dump = await PostgresDatabase.open(url), PostgresOrderDump(url)
    history = History(database, 0)
    for _ in range(20):
        await history.step()
    assert await dump.wrong_totals() == []

    [key] = await run_sql(
        database,
        "UPDATE exposures SET notional = notional + 1 WHERE (account_id, symbol, currency) IN "
        "(SELECT account_id, symbol, currency FROM exposures WHERE open_orders > 0 LIMIT 1) "
        "RETURNING account_id, symbol, currency",
    )
    assert await dump.wrong_totals() == [key]

    await forget_totals(database)  # as the command says
    assert await dump.wrong_totals() == []
    for _ in range(5):
        await history.step()
    assert await dump.wrong_totals() == []
    await database.close()
