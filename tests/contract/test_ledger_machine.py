"""Fills, busts, corrections, flips, fees and entries of people in any order: the books are those of a plain model."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard.bootstrap.books import OpenBooks
from switchyard.domain.books.entries import fill_entry_id
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Side
from switchyard.flow.backoffice.check import Carried, Differences, compare_ledgers, read_events_of, rebuild
from tests.support.ledgers import opened_ledgers
from tests.support.plain_books import PlainBooks, Trade, agree, agree_by_day
from tests.support.postgres import PostgresServer
from tests.support.posting import Posting, differences, digest
from tests.support.tape import START, Tape, TapeSource

ACCOUNTS = ("demo", "other")
# Prices and quantities with up to 8 decimals; small, so that positions are often closed and flipped.
prices = st.decimals("0.00000001", 500, places=8)
quantities = st.one_of(st.integers(1, 5).map(Decimal), st.decimals("0.00000001", 5, places=8))
instruments = st.sampled_from(
    [
        ("USDJPY", "JPY", Decimal(1)),
        ("ES", "USD", Decimal("12.5")),
        ("BTC", "USD", Decimal(1)),
        ("ODD", None, Decimal(3)),
    ]
)
sides: st.SearchStrategy[Side] = st.sampled_from(["BUY", "SELL"])
fees = st.one_of(st.none(), st.tuples(st.decimals("-0.5", 2, places=8), st.sampled_from([None, "BTC", "EUR"])))
steps = st.sampled_from(
    ["order", "fill", "fill", "fill", "repeat", "bust", "correct", "unknown", "early", "person", "page"]
)
_numbers = count(1)


class Order:
    """An order of the tape, with the plain model's view of it."""

    def __init__(self, name: str, data: st.DataObject) -> None:
        self.name = name
        self.account = data.draw(st.sampled_from(ACCOUNTS))
        self.symbol, currency, self.multiplier = data.draw(instruments)
        self.given_currency = currency
        self.currency = currency or "XXX"
        self.side = data.draw(sides)
        self.strategy = data.draw(st.sampled_from([None, "trend", "carry"]))

    def trade(self, name: str, qty: Decimal, price: Decimal, fee: tuple[Decimal, str | None] | None) -> Trade:
        amount, currency = fee or (Decimal(0), None)
        signed = Fraction(qty) if self.side == "BUY" else -Fraction(qty)
        return Trade(
            name=name,
            account=self.account,
            strategy=self.strategy or "",
            symbol=self.symbol,
            currency=self.currency,
            qty=signed,
            price=Fraction(price) * Fraction(self.multiplier),
            fee=Fraction(amount),
            fee_currency=currency or self.currency,
        )


class Run:
    """One run: the tape, the ledger that follows it, and the plain model."""

    def __init__(self, data: st.DataObject, books: OpenBooks, journal: Posting) -> None:
        self.data = data
        self.books = books
        self.journal = journal
        self.tape = Tape()
        self.plain = PlainBooks()
        self.pending: list[Any] = []
        """What the plain model does when the tape so far is posted: the ledger is behind the tape."""
        self.orders: list[Order] = []
        self.live: dict[str, tuple[Order, str, tuple[Decimal, str | None] | None]] = {}
        """Executions that can be taken back: by the id of the first, its order, the newest id, and the fee."""
        self.early: list[tuple[Order, str, str, tuple[Decimal, Decimal] | None]] = []
        """Revisions before their executions: order, execution, revision, and the corrected quantity and price."""
        self.done = 0
        self.number = 0

    async def step(self) -> None:
        kind = self.data.draw(steps)
        self.number += 1
        if kind == "order" or not self.orders:
            self._order()
        elif kind == "person":
            await self.post()  # a person's entry comes after what was read
            await self._person()
        elif kind == "page":
            await self.post()
        elif kind == "early":
            self._revise_early()
        elif kind == "fill" or not self.live:
            if bool(self.early) and self.data.draw(st.booleans()):
                self._fill_revised()
            else:
                self._fill()
        elif kind == "repeat":
            first = self.data.draw(st.sampled_from(sorted(self.live)))
            order = self.live[first][0]
            self.tape.fill(order.name, first, Decimal(1), account=order.account)
        else:
            self._revise(kind)

    async def post(self) -> None:
        """Post the tape in pages of any size, and compare."""
        while self.done < len(self.tape.events):
            size = self.data.draw(st.integers(1, len(self.tape.events) - self.done))
            await self.journal.post(self.tape.events[self.done : self.done + size])
            self.done += size
        for change in self.pending:
            change()
        self.pending.clear()
        await agree(self.books.ledger, self.books.reports, self.plain, ACCOUNTS)

    def _order(self) -> None:
        order = Order(f"ord_{self.number}", self.data)
        self.orders.append(order)
        self.tape.accept(
            order.name,
            account=order.account,
            symbol=order.symbol,
            side=order.side,
            currency=order.given_currency,
            multiplier=order.multiplier,
            strategy=order.strategy,
        )

    def _fill(self) -> None:
        order = self.data.draw(st.sampled_from(self.orders))
        fee = self.data.draw(fees)
        qty, price = self.data.draw(quantities), self.data.draw(prices)
        name = f'e{self.number} é"\\\u2028\t'
        changes = {} if fee is None else {"fee": fee[0], "fee_currency": fee[1]}
        self.tape.fill(order.name, name, qty, account=order.account, last_price=price, **changes)
        trade = order.trade(name, qty, price, fee)
        self.pending.append(lambda: self.plain.trades.append(trade))
        self.live[name] = order, name, fee

    def _revise_early(self) -> None:
        order = self.data.draw(st.sampled_from(self.orders))
        corrected = self.data.draw(st.one_of(st.none(), st.tuples(quantities, prices)))
        name, revision = f"l{self.number}", f"r{self.number}"
        self.tape.revise(order.name, revision, name, account=order.account, corrected=corrected)
        self.early.append((order, name, revision, corrected))

    def _fill_revised(self) -> None:
        """The execution of an early revision comes: of a bust it counts for nothing."""
        order, name, revision, corrected = self.early.pop(self.data.draw(st.integers(0, len(self.early) - 1)))
        fee = self.data.draw(fees)
        changes = {} if fee is None else {"fee": fee[0], "fee_currency": fee[1]}
        price = self.data.draw(prices)
        self.tape.fill(order.name, name, self.data.draw(quantities), account=order.account, last_price=price, **changes)
        if corrected is not None:
            trade = order.trade(revision, *corrected, fee)
            self.pending.append(lambda: self.plain.trades.append(trade))
            self.live[name] = order, revision, fee

    def _revise(self, kind: str) -> None:
        first = self.data.draw(st.sampled_from(sorted(self.live)))
        order, newest, fee = self.live[first]
        name = f"r{self.number}"
        # A venue may name the first execution or its newest correction.
        named = self.data.draw(st.sampled_from([first, newest]))
        if kind == "unknown":
            self.tape.revise(order.name, name, f"no-{self.number}", account=order.account)
            return
        if kind == "bust":
            self.tape.revise(order.name, name, named, account=order.account)
            self.tape.revise(order.name, f"{name}-again", named, account=order.account)  # reversed already: a memo
            self.pending.append(lambda: self.plain.take_back(newest))
            del self.live[first]
            return
        qty, price = self.data.draw(quantities), self.data.draw(prices)
        self.tape.revise(order.name, name, named, account=order.account, corrected=(qty, price))
        trade = order.trade(name, qty, price, fee)  # the venue says nothing about the fee: it stays
        self.pending.append(lambda: self.plain.take_back(newest))
        self.pending.append(lambda: self.plain.trades.append(trade))
        self.live[first] = order, name, fee

    async def _person(self) -> None:
        account = AccountId(self.data.draw(st.sampled_from(ACCOUNTS)))
        choice = self.data.draw(st.sampled_from(["deposit", "convert", "position", "reverse"]))
        amount, other = self.data.draw(quantities), self.data.draw(prices)
        fields: dict[str, Any] = {"account_id": account, "key": f"k{self.number}", "by": "ann", "reason": "a test"}
        moves, name = self.plain.moves, f"p{self.number}"
        match choice:
            case "deposit":
                wanted = ManualEntry(type="Deposit", currency="JPY", amount=amount, **fields)
                moves += [(account, "cash", "JPY", Fraction(amount)), (account, "capital", "JPY", -Fraction(amount))]
            case "convert":
                wanted = ManualEntry(
                    type="Conversion", currency="JPY", amount=amount, to_currency="USD", rate=other, **fields
                )
                exact = Fraction(amount) * Fraction(other)
                result = Fraction(round(exact, 2))
                moves += [(account, "cash", "JPY", -Fraction(amount)), (account, "conversion", "JPY", Fraction(amount))]
                moves += [(account, "cash", "USD", result), (account, "conversion", "USD", -exact)]
                moves.append((account, "rounding", "USD", exact - result))
            case "position":
                wanted = ManualEntry(
                    type="OpeningPosition",
                    currency="USD",
                    symbol="ES",
                    side="SELL",
                    qty=amount,
                    price=other,
                    multiplier=Decimal("12.5"),
                    strategy="trend",
                    **fields,
                )
                price = Fraction(other) * Fraction("12.5")
                self.plain.trades.append(
                    Trade(name, account, "trend", "ES", "USD", -Fraction(amount), price, paid_from="capital")
                )
            case _:
                if not self.live:
                    return
                first = self.data.draw(st.sampled_from(sorted(self.live)))
                order, newest, _ = self.live.pop(first)
                fields |= {"account_id": AccountId(order.account)}
                entry_id = fill_entry_id("sim", order.account, first)
                wanted = ManualEntry(type="Reversal", reverses=entry_id, **fields)
                self.plain.take_back(newest)
        # A person's clock is ahead of or behind the journal's.
        at = START + timedelta(seconds=self.data.draw(st.integers(-90_000, 90_000)))
        entered = await self.books.ledger.enter(wanted, at)
        again = await self.books.ledger.enter(wanted, at + timedelta(seconds=1))
        assert (entered.repeated, again.repeated, again.entry) == (False, True, entered.entry)
        await agree(self.books.ledger, self.books.reports, self.plain, ACCOUNTS)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Path | str:
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return folder
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_books_are_those_of_a_plain_model_after_every_step_and_a_rebuild_agrees(
    place: Path | str, data: st.DataObject
) -> None:
    async def check() -> None:
        async with opened_ledgers(place) as ledgers:
            books = await ledgers.open(f"books_{next(_numbers)}")
            run = Run(data, books, await Posting.of(books.ledger))
            for _ in range(data.draw(st.integers(1, 25))):
                await run.step()
            await run.post()
            assert await differences(books.dump) == []
            await agree_by_day(books.ledger, books.reports, ACCOUNTS)
            again = await ledgers.open(f"again_{next(_numbers)}")
            source = TapeSource(run.tape)
            carried = await Carried.from_books(books.ledger, books.dump, again.ledger, source)
            await rebuild(source, again.ledger, await read_events_of(books.dump), None, carried)
            found = Differences()
            await compare_ledgers(books.dump, again.dump, found)
            assert found.lines + await differences(again.dump) == []
            assert await digest(books.dump) == await digest(again.dump)

    asyncio.run(check())
