"""The paper exchange's matching rules and its book of open orders, without a file or an event loop."""

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.matching import (
    PaperOrder,
    Rules,
    advanced,
    arrived,
    canceled,
    matched,
    rejection,
)
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue, Instrument
from switchyard.domain.orders.order import Order, Side, TimeInForce
from switchyard.domain.values import ZERO
from tests.support.venue_orders import MOMENT, an_order

RULES = Rules(venue=VenueName("sim"))
QUOTE = Quote(bid=Decimal("149.990"), ask=Decimal("150.010"))
USDJPY = Catalogue().find("USDJPY")
SECOND = timedelta(seconds=1)


def accepted(order: Order, *, number: int = 1, instrument: Instrument = USDJPY, rules: Rules = RULES) -> PaperOrder:
    return arrived(order, number, f"sim-{number}", instrument, QUOTE, MOMENT, rules)


@pytest.mark.parametrize(("side", "price"), [("BUY", "150.010"), ("SELL", "149.990")])
def test_a_market_order_fills_at_once_on_the_other_side_of_the_quote(side: Side, price: str) -> None:
    order, [report] = advanced(accepted(an_order("one", side=side)), MOMENT, RULES)
    assert (report.status, report.last_price, report.last_qty) == ("FILLED", Decimal(price), Decimal(1000))
    assert not order.is_open


@pytest.mark.parametrize(("side", "limit", "price"), [("BUY", "151", "150.010"), ("SELL", "149", "149.990")])
def test_a_marketable_limit_order_gets_the_better_price_of_the_market(side: Side, limit: str, price: str) -> None:
    _, [report] = advanced(accepted(an_order("one", side=side, price=limit)), MOMENT, RULES)
    assert (report.status, report.last_price) == ("FILLED", Decimal(price))


@pytest.mark.parametrize("time_in_force", ["IOC", "FOK"])
def test_an_ioc_or_fok_order_that_is_not_marketable_expires(time_in_force: TimeInForce) -> None:
    order, [report] = advanced(accepted(an_order("one", price="140", time_in_force=time_in_force)), MOMENT, RULES)
    assert (order.status, report.status, report.reason) == ("EXPIRED", "EXPIRED", f"{time_in_force}_NOT_FILLED")
    assert (report.last_qty, report.last_price, report.filled_qty_total) == (ZERO, None, ZERO)


def test_a_gtc_order_rests_and_later_fills_at_its_limit_price() -> None:
    resting, reports = advanced(accepted(an_order("one", price="140")), MOMENT, RULES)
    assert resting.is_resting and not reports
    order, [report] = advanced(matched(resting, QUOTE, MOMENT + SECOND, RULES), MOMENT + SECOND, RULES)
    assert (order.status, report.last_price) == ("FILLED", Decimal(140))


def test_the_delay_applies_to_each_report() -> None:
    rules = Rules(venue=VenueName("sim"), delay=SECOND, partial_steps=3)
    order = accepted(an_order("one", qty="100"), rules=rules)
    seen = []
    for seconds in range(5):
        order, reports = advanced(order, MOMENT + seconds * SECOND, rules)
        seen.append([(report.status, report.last_qty) for report in reports])
    partial = "PARTIALLY_FILLED"
    assert seen == [[], [(partial, Decimal(34))], [(partial, Decimal(33))], [("FILLED", Decimal(33))], []]


def test_reports_that_became_due_while_stopped_are_made_at_once() -> None:
    rules = Rules(venue=VenueName("sim"), delay=SECOND, partial_steps=3)
    stored = msgspec.json.encode(accepted(an_order("one"), rules=rules))
    order, reports = advanced(msgspec.json.decode(stored, type=PaperOrder), MOMENT + timedelta(days=1), rules)
    assert (order.status, order.filled_qty, len(reports)) == ("FILLED", Decimal(1000), 3)


def test_a_cancel_ends_only_the_remainder() -> None:
    rules = Rules(venue=VenueName("sim"), delay=SECOND, partial_steps=2)
    part, [fill] = advanced(accepted(an_order("one"), rules=rules), MOMENT + SECOND, rules)
    order, report = canceled(part, MOMENT + SECOND, rules)
    assert (report.status, report.reason) == ("CANCELED", "CANCELED_BY_REQUEST")
    assert (report.last_qty, report.filled_qty_total) == (ZERO, Decimal(500))
    assert fill.exec_id != report.exec_id
    assert advanced(order, MOMENT + 9 * SECOND, rules) == (order, [])


@given(units=st.integers(1, 10**9), places=st.integers(0, 8), parts=st.integers(1, 50))
def test_parts_of_a_fill_are_on_the_step_and_add_up(units: int, places: int, parts: int) -> None:
    step = Decimal(1).scaleb(-places)
    rules = Rules(venue=VenueName("sim"), partial_steps=parts)
    instrument = Instrument(symbol="X", step=step)
    order, reports = advanced(
        accepted(an_order("one", qty=f"{units * step:f}"), instrument=instrument, rules=rules), MOMENT, rules
    )
    quantities = [report.last_qty for report in reports]
    assert len(quantities) == min(parts, units)
    assert all(qty > 0 and qty % step == 0 for qty in quantities)
    assert sum(quantities) == order.filled_qty == units * step
    assert [report.filled_qty_total for report in reports] == [sum(quantities[:n]) for n in range(1, len(reports) + 1)]
    assert [report.status for report in reports] == ["PARTIALLY_FILLED"] * (len(reports) - 1) + ["FILLED"]
    assert len({report.exec_id for report in reports}) == len(reports)


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (an_order("one"), None),
        (an_order("one", order_type="STOP", time_in_force="GTC"), "INVALID_STOP_PRICE"),
        (an_order("one", order_type="STOP", time_in_force="GTC", stop="151"), None),
        (an_order("one", order_type="STOP", time_in_force="GTC", stop="151", price="152"), "INVALID_PRICE"),
        (an_order("one", order_type="STOP", time_in_force="IOC", stop="151"), "INVALID_TIME_IN_FORCE"),
        (an_order("one", order_type="STOP", time_in_force="DAY", stop="151.0001"), "INVALID_STOP_PRICE"),
        (an_order("one", order_type="STOP_LIMIT", stop="151", price="152"), None),
        (an_order("one", order_type="STOP_LIMIT", time_in_force="DAY", stop="151"), "INVALID_PRICE"),
        (an_order("one", price="152", stop="151"), "INVALID_STOP_PRICE"),
        (an_order("one", order_type="LIMIT"), "INVALID_PRICE"),
        (an_order("one", order_type="MARKET", price="150"), "INVALID_PRICE"),
        (an_order("one", price="150.0001"), "INVALID_PRICE"),
        (an_order("one", price="-150"), "INVALID_PRICE"),
        (an_order("one", qty="0.5"), "INVALID_QTY"),
        (an_order("one", qty="0"), "INVALID_QTY"),
        (an_order("one", qty="NaN"), "INVALID_QTY"),
        (an_order("one", qty="Infinity"), "INVALID_QTY"),
        (an_order("one", qty="1E15"), "INVALID_QTY"),
        (an_order("one", qty="1." + "3" * 100), "INVALID_QTY"),
        (an_order("one", qty="1e-999999"), "INVALID_QTY"),
        (an_order("one", price="1e999999"), "INVALID_PRICE"),
    ],
)
def test_an_invalid_order_is_rejected(order: Order, reason: str | None) -> None:
    assert rejection(order, USDJPY, QUOTE, RULES) == reason


def test_with_reject_all_a_valid_order_is_rejected() -> None:
    rules = Rules(venue=VenueName("sim"), reject_all=True)
    assert rejection(an_order("one"), USDJPY, QUOTE, rules) == "REJECTED_BY_VENUE"


def resting(number: int, side: Side, price: str, symbol: str = "USDJPY") -> PaperOrder:
    return accepted(an_order(f"order-{number}", side=side, price=price, symbol=symbol), number=number)


def test_marketable_orders_come_in_price_then_time_priority() -> None:
    book = Book(0, 0, [resting(n, "BUY", price) for n, price in enumerate(["148", "149", "147", "149"])])
    quote = Quote(bid=Decimal("147.9"), ask=Decimal("148"))
    assert [order.number for order in book.marketable({"USDJPY": quote}, 10)] == [1, 3, 0]


def test_marketable_sell_orders_come_with_the_lowest_price_first() -> None:
    book = Book(0, 0, [resting(n, "SELL", price) for n, price in enumerate(["153", "151", "152"])])
    quote = Quote(bid=Decimal("152"), ask=Decimal("152.1"))
    assert [order.number for order in book.marketable({"USDJPY": quote}, 10)] == [1, 2]


def test_an_ended_order_is_removed_from_the_book() -> None:
    order = resting(1, "BUY", "148")
    book = Book(0, 0, [order])
    book.apply([canceled(order, MOMENT, RULES)[0]], report_count=1)
    assert (book.open_count, book.last_order, book.last_report) == (0, 1, 1)
    assert book.find(VenueClientOrderId("order-1")) is None
    assert book.take_symbols(10) == []


def test_an_order_is_taken_as_due_once_and_not_after_its_cancel() -> None:
    rules = Rules(venue=VenueName("sim"), delay=SECOND)
    kept, dropped = (accepted(an_order(f"order-{n}"), number=n, rules=rules) for n in (1, 2))
    book = Book(0, 0, [kept, dropped])
    book.apply([canceled(dropped, MOMENT, rules)[0]], report_count=1)
    assert book.take_due(MOMENT, 10) == []
    assert book.next_due_at() == MOMENT + SECOND
    assert book.take_due(MOMENT + SECOND, 10) == [kept]
    assert book.take_due(MOMENT + SECOND, 10) == []


def test_symbols_are_taken_in_round_robin_order() -> None:
    book = Book(0, 0, [resting(n, "BUY", "1", symbol=symbol) for n, symbol in enumerate("ABC")])
    assert [book.take_symbols(2), book.take_symbols(2)] == [["A", "B"], ["C", "A"]]
