"""Reservations as pure functions: what an order reserves, the totals, and the checks of limits."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.accounts.positions import Position
from switchyard.domain.decisions import accept, apply_report, begin_attempt, record_doubt, request_cancel
from switchyard.domain.ids import AccountId, VenueClientOrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order, OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.claims import (
    Breach,
    Claim,
    Limits,
    LimitSettings,
    Terms,
    TradingDay,
    is_reducing,
    reserve_price,
    reserved,
    terms_of,
)
from switchyard.domain.risk.exposure import Book, summed
from tests.support.build import VENUE, WORKER, a_report, an_accept, an_order_id
from tests.support.memory.clock import START

A, B = AccountId("a"), AccountId("b")


def an_order(**changes: Any) -> Order:
    order = an_accept(qty=Decimal(10), price=Decimal(100)).orders[0]
    return msgspec.structs.replace(order, **changes)


class TestReservePrice:
    @pytest.mark.parametrize(
        ("side", "price", "quote", "collar", "expected"),
        [
            ("BUY", "100", ("90", "91"), None, "100"),
            ("BUY", "100", None, "5", "100"),
            ("SELL", "100", ("90", "91"), "5", "100"),
            ("SELL", "90", ("90", "91"), "5", "90"),
            ("SELL", "0.01", ("90", "91"), None, "90"),  # it is filled at the market
            ("SELL", "0.01", ("90", "91"), "5", "94.5"),
            ("SELL", "0.01", None, None, "0.01"),
            ("BUY", None, ("90", "91"), None, "91"),
            ("SELL", None, ("90", "91"), None, "90"),
            ("BUY", None, ("90", "91"), "5", "95.55"),
            ("SELL", None, ("90", "91"), "5", "94.5"),
            ("BUY", None, ("0.00000001", "0.00000001"), "0.1", "0.00000002"),  # rounded up
            ("BUY", None, None, "5", None),
        ],
    )
    def test_limit_price_or_market_plus_collar(
        self, side: Any, price: str | None, quote: tuple[str, str] | None, collar: str | None, expected: str | None
    ) -> None:
        request = OrderRequest(
            symbol="BTC",
            side=side,
            type="MARKET" if price is None else "LIMIT",
            qty=Decimal(1),
            price=None if price is None else Decimal(price),
        )
        market = None if quote is None else Quote(bid=Decimal(quote[0]), ask=Decimal(quote[1]))
        found = reserve_price(request, market, None if collar is None else Decimal(collar))
        assert found == (None if expected is None else Decimal(expected))

    @pytest.mark.parametrize(
        ("side", "stop", "price", "quote", "collar", "expected"),
        [
            ("BUY", "100", None, ("90", "91"), None, "100"),
            ("BUY", "100", None, ("90", "91"), "5", "105"),
            ("BUY", "1", None, ("90", "91"), None, "91"),  # it is triggered at once and pays the market
            ("BUY", "100", None, None, "5", None),  # the market may be far above the stop price
            ("BUY", "100", "102", ("90", "91"), "5", "102"),
            ("BUY", "1", "102", None, None, "102"),
            ("SELL", "80", None, ("90", "91"), None, "80"),
            ("SELL", "80", None, None, "5", "84"),
            ("SELL", "80", "79", ("90", "91"), None, "80"),  # a limit price is the least that it gets
            ("SELL", "80", "120", ("90", "91"), "5", "120"),
        ],
    )
    def test_stop_price_plus_collar_or_the_market_that_has_passed_it(
        self,
        side: Any,
        stop: str,
        price: str | None,
        quote: tuple[str, str] | None,
        collar: str | None,
        expected: str | None,
    ) -> None:
        request = OrderRequest(
            symbol="BTC",
            side=side,
            type="STOP" if price is None else "STOP_LIMIT",
            qty=Decimal(1),
            price=None if price is None else Decimal(price),
            stop_price=Decimal(stop),
        )
        market = None if quote is None else Quote(bid=Decimal(quote[0]), ask=Decimal(quote[1]))
        found = reserve_price(request, market, None if collar is None else Decimal(collar))
        assert found == (None if expected is None else Decimal(expected))


class TestReserved:
    def test_the_rest_at_its_price_times_the_multiplier(self) -> None:
        order = an_order(filled_qty=Decimal(4), reserve_price=Decimal(7), multiplier=Decimal("2.5"))
        held = reserved(order)
        assert held is not None
        assert (held.qty, held.notional) == (Decimal(6), Decimal(105))

    @pytest.mark.parametrize("status", ["ACCEPTED", "SENDING", "UNKNOWN", "WORKING", "CANCEL_REQUESTED"])
    def test_every_open_status_reserves(self, status: Any) -> None:
        assert reserved(an_order(status=status)) is not None

    @pytest.mark.parametrize("status", ["FILLED", "CANCELED", "REJECTED", "EXPIRED"])
    def test_an_ended_order_reserves_nothing(self, status: Any) -> None:
        assert reserved(an_order(status=status, filled_qty=Decimal(3))) is None

    def test_an_overfilled_open_order_reserves_no_negative_amount(self) -> None:
        held = reserved(an_order(status="UNKNOWN", filled_qty=Decimal(12)))
        assert held is not None
        assert (held.qty, held.notional) == (Decimal(0), Decimal(0))

    def test_largest_amounts_are_exact(self) -> None:
        most = Decimal("999999999999999.99999999")
        held = reserved(an_order(qty=most, reserve_price=most, multiplier=most))
        assert held is not None
        assert len(held.notional.as_tuple().digits) == 69


@pytest.mark.parametrize(
    ("position", "open_qty", "side", "qty", "expected"),
    [
        (10, 0, "SELL", 10, True),
        (10, 0, "SELL", 11, False),
        (10, 4, "SELL", 6, True),
        (10, 4, "SELL", 7, False),
        (10, 0, "BUY", 1, False),
        (-10, 0, "BUY", 10, True),
        (-10, 3, "BUY", 8, False),
        (-10, 0, "SELL", 1, False),
        (0, 0, "SELL", 1, False),
        (0, 0, "BUY", 1, False),
    ],
)
def test_reducing(position: int, open_qty: int, side: Any, qty: int, expected: bool) -> None:
    assert is_reducing(Decimal(position), Decimal(open_qty), side, Decimal(qty)) is expected


class Desk:
    """Lives of orders on a book: every accept is judged first, as the append does it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.book = Book([], [], lambda account, since: [])
        self.states: list[OrderState] = []
        self.positions: dict[tuple[AccountId, str], Position] = {}
        self.breaches: list[Breach] = []
        self.fills = 0

    def accept(self, account: AccountId, side: Any, qty: Decimal, price: Decimal) -> None:
        here = self.book.symbol(account, "USDJPY")
        open_qty = here.buy_qty if side == "BUY" else here.sell_qty
        terms = Terms(
            currency="JPY", price=price, reducing=is_reducing(here.position, open_qty, side, qty), multiplier=Decimal(2)
        )
        order_id = an_order_id()
        change = accept(
            OrderRequest(symbol="USDJPY", side=side, type="LIMIT", qty=qty, price=price, time_in_force="GTC"),
            account=account,
            order_id=order_id,
            venue=VENUE,
            venue_client_order_id=VenueClientOrderId(order_id),
            key=None,
            quote=None,
            now=START,
            terms=terms,
            claim=Claim(order_id=order_id, limits=self.limits, day=START.date()),
        )
        breach = self.book.reserve(change)
        if breach is not None:
            assert breach.reason != "NOT_REDUCING"
            self.breaches.append(breach)
            return
        self.states.append(OrderState(order=change.orders[0], outbox=change.outbox))
        self.book.note([change])

    def step(self, number: int, kind: str, share: int) -> None:
        """Let something happen to one of the orders."""
        if not self.states:
            return
        place = number % len(self.states)
        state = self.states[place]
        key = (state.order.account_id, state.order.symbol)
        row = state.row("new", 1)
        change: Change | None = None
        match kind:
            case "send" if row.status == "queued" and not is_final(state.order.status):
                change = begin_attempt(state, row, WORKER, START)
            case "doubt" if row.status == "sending":
                change = record_doubt(state, row, "NETWORK_TIMEOUT", None, START)
            case "cancel" if not is_final(state.order.status):
                change = request_cancel(state, START)
            case "fill" if not is_final(state.order.status):
                rest = state.order.qty - state.order.filled_qty
                part = max((rest * share / 4).quantize(Decimal(1)), Decimal(1))
                self.fills += 1
                report = a_report(state, "PARTIALLY_FILLED", exec_id=f"exec-{self.fills}", qty=min(part, rest))
                change = apply_report(state, self.positions.get(key), report, START)
            case "end" if not is_final(state.order.status):
                self.fills += 1
                report = a_report(state, "CANCELED", exec_id=f"exec-{self.fills}", qty=Decimal(0))
                change = apply_report(state, None, report, START)
        if change is None:
            return
        for position in change.positions:
            self.positions[position.key] = position
        rows = {held.key: held for held in (*state.outbox, *change.outbox)}
        self.states[place] = OrderState(order=change.orders[-1], outbox=tuple(rows.values()))
        self.book.note([change])

    def check(self) -> None:
        """The book is the sum over the rows, and no limit is exceeded."""
        orders = [state.order for state in self.states]
        expected = summed(orders)
        for account in (A, B):
            exposure = self.book.copy_of(account, None)
            totals = {(account, *key): total.canonical() for key, total in exposure.totals.items()}
            assert totals == {key: total for key, total in expected.items() if key[0] == account}
            here = exposure.symbol("USDJPY")
            position = self.positions.get((account, "USDJPY"))
            assert here.position == (position.qty if position else 0)
            longest, shortest = here.position + here.buy_qty, here.position - here.sell_qty
            assert self.limits.position is not None
            assert -self.limits.position <= shortest
            assert longest <= self.limits.position
            taken = exposure.part("JPY").notional - exposure.part("JPY").reducing_notional
            assert self.limits.open_notional is not None
            assert taken <= self.limits.open_notional


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("accept"), st.sampled_from([A, B]), st.sampled_from(["BUY", "SELL"]), st.integers(1, 40),
            st.integers(1, 9),
        ),
        st.tuples(
            st.sampled_from(["send", "doubt", "cancel", "fill", "fill", "end"]), st.integers(0, 50), st.integers(1, 4)
        ),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_totals_are_the_sum_of_the_rows_and_return_to_zero(steps: list[tuple[Any, ...]]) -> None:
    service = Desk(Limits(position=Decimal(60), open_notional=Decimal(700)))
    for step in steps:
        match step:
            case ("accept", account, side, qty, price):
                service.accept(account, side, Decimal(qty), Decimal(price))
            case (kind, number, share):
                service.step(number, kind, share)
        service.check()
    for place in range(len(service.states)):
        service.step(place, "end", 4)
    service.check()
    for account in (A, B):
        assert service.book.copy_of(account, None).totals == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=12))
def test_a_group_that_was_not_written_leaves_no_trace(orders: list[tuple[int, int]]) -> None:
    book = Book([], [], lambda account, since: [])
    written = an_accept(qty=Decimal(3), price=Decimal(5))
    book.note([written])
    before = book.copy_of(written.orders[0].account_id, None).totals
    group = []
    for side, qty in orders:
        change = an_accept(qty=Decimal(qty), side="BUY" if side % 2 else "SELL")
        claim = Claim(order_id=change.orders[0].order_id, limits=Limits(open_orders=4))
        change = msgspec.structs.replace(change, claims=(claim,))
        if book.reserve(change) is None:
            group.append(change)

    book.take_back(group)

    assert book.copy_of(written.orders[0].account_id, None).totals == before


class TestTradingDay:
    @pytest.mark.parametrize(
        ("zone", "roll", "at", "day"),
        [
            ("UTC", "00:00", "2025-03-04T00:00:00", "2025-03-04"),
            ("UTC", "00:00", "2025-03-03T23:59:59.999999", "2025-03-03"),
            ("UTC", "06:00", "2025-03-04T05:59:59", "2025-03-03"),
            ("UTC", "06:00", "2025-03-04T06:00:00", "2025-03-04"),
            # New York is 5 hours behind UTC in winter and 4 in summer; the day that begins at 17:00 is the next one.
            ("America/New_York", "17:00", "2025-03-07T21:59:59", "2025-03-07"),
            ("America/New_York", "17:00", "2025-03-07T22:00:00", "2025-03-08"),
            ("America/New_York", "17:00", "2025-03-10T20:59:59", "2025-03-10"),
            ("America/New_York", "17:00", "2025-03-10T21:00:00", "2025-03-11"),
        ],
    )
    def test_zone_and_roll(self, zone: str, roll: str, at: str, day: str) -> None:
        named = TradingDay(ZoneInfo(zone), time.fromisoformat(roll)).of(datetime.fromisoformat(at).replace(tzinfo=UTC))
        assert named == date.fromisoformat(day)

    @given(
        st.sampled_from(["UTC", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe"]),
        st.times().map(lambda at: at.replace(second=0, microsecond=0)),
        st.integers(0, 2 * 10**9),
    )
    def test_a_day_ends_with_its_next_roll_time(self, zone: str, roll: time, at: int) -> None:
        days, now = TradingDay(ZoneInfo(zone), roll), datetime.fromtimestamp(at, UTC)
        end = days.end_of(now)
        assert now < end <= now + timedelta(hours=26)
        # Within an hour of a time change, the roll time may come twice or not at all.
        offsets = {moment.astimezone(days.zone).utcoffset() for moment in (end - timedelta(hours=1), end)}
        if len(offsets) == 1:
            assert end.astimezone(days.zone).time() == roll
            assert days.of(end) > days.of(end - timedelta(microseconds=1))
            assert days.end_of(end) > end

    @given(st.integers(0, 10**9), st.integers(0, 10**9))
    def test_days_never_go_back(self, one: int, two: int) -> None:
        days = TradingDay(ZoneInfo("Europe/London"), time(17))
        first, second = (datetime.fromtimestamp(at, UTC) for at in sorted((one, two)))
        assert days.of(first) <= days.of(second)


class TestLimitSettings:
    def test_an_accounts_own_limit_goes_before_the_global_one(self) -> None:
        settings = LimitSettings(
            max_open_orders=5,
            max_open_orders_by_account={A: 9},
            max_open_orders_by_account_symbol={(A, "BTC"): 2},
            max_position=Decimal(10),
            max_position_by_account={A: Decimal(20)},
            max_position_by_account_symbol={(A, "BTC"): Decimal(15), (B, "BTC"): Decimal(50)},
        )
        assert settings.limits_of(A, "BTC") == Limits(open_orders=9, symbol_open_orders=2, position=Decimal(15))
        assert settings.limits_of(A, "ETH") == Limits(open_orders=9, position=Decimal(20))
        assert settings.limits_of(B, "BTC") == Limits(open_orders=5, position=Decimal(10))
        assert settings.symbols() == {"BTC"}

    def test_a_limit_on_quantities_needs_no_price(self) -> None:
        assert not Limits(open_orders=1, position=Decimal(1), daily_loss=Decimal(1), window_orders=1).needs_price
        assert Limits(symbol_open_notional=Decimal(1)).needs_price


def test_terms_come_from_the_instrument() -> None:
    future = Instrument(symbol="ES", quote="USD", settle="EUR", multiplier=Decimal(50), collar_percent=Decimal(10))
    request = OrderRequest(symbol="ES", side="BUY", type="MARKET", qty=Decimal(1))
    terms = terms_of(request, future, Quote(bid=Decimal(99), ask=Decimal(100)))
    assert terms == Terms(currency="EUR", multiplier=Decimal(50), price=Decimal(110))
