"""Stop orders, DAY orders and displayed quantities in the paper exchange's matching rules, without a file."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.adapters.venues.paper import book as book_module
from switchyard.adapters.venues.paper import matching as matching_module
from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.matching import Displayed, PaperOrder, Rules, advanced, arrived, canceled
from switchyard.adapters.venues.paper.settlement import Settlement
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.quotes import is_triggered
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Side
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ZERO
from switchyard.ports.venue import Accepted, VenueRejected
from tests.support.venue_orders import MOMENT, an_order

USDJPY = Catalogue().find("USDJPY")
SECOND = timedelta(seconds=1)
DAY_END = MOMENT.replace(hour=0) + timedelta(days=1)
OPEN = Quote(bid=Decimal("149.99"), ask=Decimal("150.01"))


def quoted(bid: str, ask: str) -> Quote:
    return Quote(bid=Decimal(bid), ask=Decimal(ask))


class Exchange:
    """A book with its settlements, one per market step of a second."""

    def __init__(self, displayed: str | None = None, **rules: Any) -> None:
        self.rules = Rules(venue=VenueName("sim"), **rules)
        self.book = Book(0, 0)
        self.displayed_qty = None if displayed is None else Decimal(displayed)
        self.displayed = Displayed()
        self.now = MOMENT
        self.orders: dict[str, PaperOrder] = {}
        self.reports: list[ExecutionReport] = []

    def submit(self, client_id: str, quote: Quote = OPEN, **terms: Any) -> list[ExecutionReport]:
        """Submit an order; returns its first reports."""
        settlement = self._settlement()
        settlement.submit(an_order(client_id, accepted_at=self.now, **terms), USDJPY, quote)
        return self._apply(settlement)

    def move(self, quote: Quote, *, seconds: float = 1, restart: bool = False) -> list[ExecutionReport]:
        """Go on to the next market step; returns what was reported."""
        self.now += timedelta(seconds=seconds)
        if restart:
            stored = msgspec.json.encode([order for order in self.orders.values() if order.is_open])
            self.book = Book(len(self.orders), len(self.reports), msgspec.json.decode(stored, type=list[PaperOrder]))
        settlement = self._settlement()
        quotes = {"USDJPY": quote} if self.book.take_symbols(10) else {}
        due = self.book.take_due(self.now, 100)
        reached = [*self.book.marketable(quotes, 100), *self.book.triggered(quotes, 100)]
        settlement.advance_time(due, [(order, quote) for order in reached])
        return self._apply(settlement)

    def _settlement(self) -> Settlement:
        self.displayed.begin(int(self.now.timestamp()), self.displayed_qty)
        return Settlement(self.book, "sim", self.orders.values(), {}, self.rules, 100, self.now, self.displayed)

    def _apply(self, settlement: Settlement) -> list[ExecutionReport]:
        self.book.apply(settlement.changed.values(), len(settlement.reports))
        self.orders.update(settlement.changed.items())
        self.reports += settlement.reports
        return settlement.reports


def shown(reports: list[ExecutionReport]) -> list[tuple[str, str, str | None]]:
    return [(r.venue_client_order_id, r.status, r.exec_type or (r.reason if not r.last_qty else None)) for r in reports]


@pytest.mark.parametrize(
    ("side", "stop", "quote", "triggers"),
    [
        ("BUY", "150", quoted("149.9", "149.999"), False),
        ("BUY", "150", quoted("149.9", "150"), True),
        ("BUY", "150", quoted("160", "161"), True),
        ("SELL", "150", quoted("150.001", "150.1"), False),
        ("SELL", "150", quoted("150", "150.1"), True),
        ("SELL", "150", quoted("140", "141"), True),
    ],
)
def test_a_buy_stop_triggers_at_the_ask_and_a_sell_stop_at_the_bid(
    side: Side, stop: str, quote: Quote, triggers: bool
) -> None:
    assert is_triggered(side, Decimal(stop), quote) is triggers


def test_a_stop_order_waits_and_is_then_filled_at_the_market() -> None:
    exchange = Exchange()
    assert exchange.submit("one", order_type="STOP", side="SELL", time_in_force="GTC", stop="149") == []
    assert exchange.move(quoted("149.001", "149.1")) == []
    report, fill = exchange.move(quoted("148.5", "148.6"))
    assert (report.status, report.exec_type, report.last_qty, report.reason) == (
        "WORKING", "TRIGGERED", ZERO, "STOP_TRIGGERED",
    )  # fmt: skip
    assert (fill.status, fill.last_price, fill.last_qty) == ("FILLED", Decimal("148.5"), Decimal(1000))
    assert report.exec_id != fill.exec_id
    assert exchange.move(quoted("148", "148.1")) == []


def test_a_stop_order_that_the_market_has_passed_triggers_at_once() -> None:
    reports = Exchange().submit("one", order_type="STOP", side="BUY", time_in_force="GTC", stop="149")
    assert shown(reports) == [("one", "WORKING", "TRIGGERED"), ("one", "FILLED", None)]


def test_a_triggered_stop_limit_order_is_a_limit_order() -> None:
    exchange = Exchange()
    exchange.submit("gapped", order_type="STOP_LIMIT", side="SELL", stop="149", price="148.9")
    exchange.submit("filled", order_type="STOP_LIMIT", side="SELL", stop="149", price="148")
    assert shown(exchange.move(quoted("148.5", "148.6"))) == [
        ("gapped", "WORKING", "TRIGGERED"),
        ("filled", "WORKING", "TRIGGERED"),
        ("filled", "FILLED", None),
    ]
    # The market is back above the stop price: the order is not a stop order any more.
    [fill] = exchange.move(quoted("149.5", "149.6"))
    assert (fill.venue_client_order_id, fill.status, fill.last_price) == ("gapped", "FILLED", Decimal("148.9"))


def test_the_nearest_stop_price_triggers_first_and_equal_ones_in_the_order_of_arrival() -> None:
    exchange = Exchange()
    for n, stop in enumerate(["152", "151", "153", "151"]):
        exchange.submit(str(n), order_type="STOP", side="BUY", time_in_force="GTC", stop=stop)
        exchange.submit(str(n + 4), order_type="STOP", side="SELL", time_in_force="GTC", stop=str(300 - int(stop)))
    triggered = [r.venue_client_order_id for r in exchange.move(quoted("148", "152")) if r.exec_type]
    assert triggered == ["1", "3", "0", "5", "7", "4"]


def test_a_restart_between_the_trigger_and_the_fill_fills_once_at_the_price_of_the_trigger() -> None:
    exchange = Exchange(delay=5 * SECOND)
    exchange.submit("one", order_type="STOP", side="SELL", time_in_force="GTC", stop="149")
    assert shown(exchange.move(quoted("148.5", "148.6"))) == [("one", "WORKING", "TRIGGERED")]
    assert exchange.move(quoted("155", "155.1"), restart=True) == []
    [fill] = exchange.move(quoted("155", "155.1"), seconds=60, restart=True)
    assert (fill.status, fill.last_price) == ("FILLED", Decimal("148.5"))
    assert exchange.move(quoted("140", "140.1"), restart=True) == []


def test_a_waiting_stop_order_can_be_cancelled_and_is_not_triggered_any_more() -> None:
    exchange = Exchange()
    exchange.submit("one", order_type="STOP", side="SELL", time_in_force="GTC", stop="149")
    exchange.book.apply([canceled(exchange.orders["one"], exchange.now, exchange.rules)[0]], 1)
    assert exchange.move(quoted("100", "101")) == []
    assert exchange.book.take_symbols(10) == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "terms", [{"price": "140"}, {"order_type": "STOP", "side": "SELL", "stop": "100"}], ids=["limit", "stop"]
)
def test_a_day_order_expires_at_the_end_of_its_session(terms: dict[str, Any], restart: bool) -> None:
    exchange = Exchange()
    exchange.submit("one", time_in_force="DAY", **terms)
    before = (DAY_END - MOMENT).total_seconds() - 1
    assert exchange.move(OPEN, seconds=before) == []
    # The market reaches it in the same step, or while the exchange was down: the session is over all the same.
    [report] = exchange.move(quoted("1", "1.1"), restart=restart)
    assert (report.status, report.reason, report.last_qty) == ("EXPIRED", "DAY_ENDED", ZERO)
    assert exchange.move(quoted("1", "1.1"), restart=restart) == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_gtd_order_expires_at_its_own_time(restart: bool) -> None:
    exchange, end = Exchange(), MOMENT + timedelta(days=3)
    exchange.submit("one", time_in_force="GTD", price="140", expires_at=end)
    assert exchange.move(OPEN, seconds=(end - MOMENT).total_seconds() - 1) == []
    [report] = exchange.move(quoted("1", "1.1"), restart=restart)
    assert (report.status, report.reason, report.last_qty) == ("EXPIRED", "GTD_ENDED", ZERO)


def test_a_gtd_order_rests_with_what_is_not_filled_and_one_that_has_ended_is_not_filled() -> None:
    exchange = Exchange(displayed="400")
    order: dict[str, Any] = {"price": "151", "time_in_force": "GTD"}
    first = exchange.submit("one", **order, expires_at=MOMENT + timedelta(hours=1))
    assert shown(first) == [("one", "PARTIALLY_FILLED", None)]
    late = exchange.submit("late", **order, expires_at=MOMENT)
    assert shown(late) == [("late", "EXPIRED", "GTD_ENDED")]


@pytest.mark.parametrize(
    ("side", "price", "rests"),
    [("BUY", "150.01", False), ("BUY", "150", True), ("SELL", "149.99", False), ("SELL", "150", True)],
)
def test_a_post_only_order_never_trades_when_it_arrives(side: Side, price: str, rests: bool) -> None:
    settlement = Exchange()._settlement()
    order = an_order("one", side=side, price=price, post_only=True)
    outcome = settlement.submit(order, USDJPY, OPEN)
    assert isinstance(outcome, Accepted) == rests
    if not rests:
        assert outcome == VenueRejected("BROKER_REJECTED", "POST_ONLY_WOULD_TRADE")
        # A repeat is answered as the first time, also when the market has moved away.
        assert settlement.submit(order, USDJPY, quoted("100", "300")) == outcome
    assert settlement.reports == []


def test_a_post_only_order_is_filled_when_the_market_comes_to_it() -> None:
    exchange = Exchange()
    assert exchange.submit("one", price="149", post_only=True) == []
    assert shown(exchange.move(quoted("148.9", "149"), restart=True)) == [("one", "FILLED", None)]


def test_an_amend_does_not_make_a_post_only_order_trade() -> None:
    exchange = Exchange()
    exchange.submit("one", price="149", post_only=True)
    amend = Amend(
        client_order_id=VenueClientOrderId("amend"),
        orig_client_order_id=VenueClientOrderId("one"),
        qty=Decimal(1000),
        price=Decimal("150.01"),
    )
    settlement = exchange._settlement()
    outcome = settlement.amend(amend, VenueClientOrderId("one"), USDJPY, OPEN)
    assert outcome == VenueRejected("BROKER_REJECTED", "POST_ONLY_WOULD_TRADE")
    near = msgspec.structs.replace(amend, price=Decimal(150))
    assert isinstance(settlement.amend(near, VenueClientOrderId("one"), USDJPY, OPEN), Accepted)


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"display_qty": Decimal(10)}, "UNSUPPORTED"),
        ({"venue_reduce_only": True}, "UNSUPPORTED"),
        ({"time_in_force": "GTD"}, "INVALID_TIME_IN_FORCE"),
        ({"time_in_force": "IOC", "post_only": True}, "INVALID_POST_ONLY"),
        ({"reduce_only": True}, None),  # a close: the exchange knows no positions, and our own check is enough
    ],
)
def test_what_the_exchange_does_not_have_it_rejects(wishes: dict[str, Any], reason: str | None) -> None:
    outcome = Exchange()._settlement().submit(an_order("one", price="140", **wishes), USDJPY, OPEN)
    assert getattr(outcome, "detail", None) == reason


def test_a_day_order_that_arrives_after_its_session_expires_at_once() -> None:
    exchange = Exchange()
    order = an_order("late", time_in_force="DAY", accepted_at=MOMENT - timedelta(days=1))
    late = arrived(order, 1, "sim-1", USDJPY, OPEN, MOMENT, exchange.rules)
    assert [report.reason for report in advanced(late, MOMENT, exchange.rules)[1]] == ["DAY_ENDED"]


def test_fills_that_are_due_before_the_end_happen_and_the_rest_expires() -> None:
    hours = timedelta(hours=10)
    exchange = Exchange(delay=hours, partial_steps=3)
    exchange.submit("one", time_in_force="DAY", price="151")
    assert shown(exchange.move(OPEN, seconds=86_400 * 2, restart=True)) == [
        ("one", "PARTIALLY_FILLED", None),
        ("one", "EXPIRED", "DAY_ENDED"),
    ]


def test_ended_day_orders_do_not_fill_the_queue_until_the_evening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "STALE_ENTRIES_MAX", 10)
    exchange = Exchange()
    for n in range(100):
        exchange.submit(str(n), time_in_force="DAY", price="140")
        exchange.book.apply([canceled(exchange.orders[str(n)], exchange.now, exchange.rules)[0]], 1)
    exchange.submit("last", time_in_force="DAY", price="140")
    assert len(exchange.book._due) <= 20
    assert shown(exchange.move(OPEN, seconds=86_400)) == [("last", "EXPIRED", "DAY_ENDED")]


def test_an_ioc_order_gets_what_is_displayed_and_its_rest_expires() -> None:
    exchange = Exchange("700")
    reports = exchange.submit("one", qty="1000", price="151", time_in_force="IOC")
    assert shown(reports) == [("one", "PARTIALLY_FILLED", None), ("one", "EXPIRED", "IOC_NOT_FILLED")]
    assert [report.filled_qty_total for report in reports] == [Decimal(700), Decimal(700)]
    assert shown(exchange.submit("two", qty="1")) == [("two", "EXPIRED", "IOC_NOT_FILLED")]
    assert shown(exchange.submit("other side", qty="700", side="SELL")) == [("other side", "FILLED", None)]


def test_a_fok_order_is_filled_whole_or_not_at_all_and_takes_nothing_if_not() -> None:
    exchange = Exchange("700", partial_steps=5)
    assert shown(exchange.submit("large", qty="701", time_in_force="FOK")) == [("large", "EXPIRED", "FOK_NOT_FILLED")]
    assert shown(exchange.submit("small", qty="700", time_in_force="FOK")) == [("small", "FILLED", None)]
    assert shown(exchange.submit("late", qty="1", time_in_force="FOK")) == [("late", "EXPIRED", "FOK_NOT_FILLED")]


@pytest.mark.parametrize(
    ("terms", "prices"),
    [
        ({"price": "151"}, ["150.01", "151", "151"]),
        ({"time_in_force": "GTC"}, ["150.01", "150.02", "150.03"]),
        ({"order_type": "STOP", "time_in_force": "DAY", "stop": "150"}, ["150.01", "150.02", "150.03"]),
    ],
    ids=["limit", "market", "stop"],
)
def test_the_rest_of_an_order_that_may_rest_is_filled_in_later_steps(terms: dict[str, Any], prices: list[str]) -> None:
    exchange = Exchange("400")
    exchange.submit("one", qty="1000", **terms)
    exchange.move(quoted("149.99", "150.02"), restart=True)
    exchange.move(quoted("149.99", "150.03"), restart=True)
    fills = [(report.last_qty, report.last_price) for report in exchange.reports if report.last_qty]
    assert fills == list(zip(map(Decimal, (400, 400, 200)), map(Decimal, prices), strict=True))
    assert exchange.orders["one"].status == "FILLED"


def test_an_order_has_a_bounded_number_of_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching_module, "FILLS_MAX", 3)
    exchange = Exchange("1")
    exchange.submit("one", qty="1000", price="151")
    for _ in range(3):
        exchange.move(OPEN)
    assert [fill.qty for fill in exchange.orders["one"].fills] == [1, 1, 1, 997]


TERMS: list[dict[str, Any]] = [
    {},
    {"time_in_force": "GTC"},
    {"time_in_force": "FOK"},
    {"price": "150.005"},
    {"price": "150.005", "time_in_force": "IOC"},
    {"price": "150.005", "time_in_force": "DAY"},
    {"order_type": "STOP", "time_in_force": "GTC", "stop": "150.005"},
    {"order_type": "STOP_LIMIT", "time_in_force": "DAY", "stop": "150.005", "price": "150.005"},
]


@given(
    orders=st.lists(
        st.tuples(st.sampled_from(TERMS), st.sampled_from(["BUY", "SELL"]), st.integers(1, 30)), max_size=6
    ),
    moves=st.lists(st.tuples(st.integers(-20, 20), st.booleans()), max_size=10),
    displayed=st.one_of(st.none(), st.integers(1, 20).map(str)),
    parts=st.integers(1, 3),
    delay=st.integers(0, 2),
)
def test_no_order_is_filled_too_much_too_early_or_beyond_what_is_displayed(
    orders: list[tuple[dict[str, Any], Side, int]],
    moves: list[tuple[int, bool]],
    displayed: str | None,
    parts: int,
    delay: int,
) -> None:
    exchange = Exchange(displayed, partial_steps=parts, delay=delay * SECOND)
    for n, (terms, side, qty) in enumerate(orders):
        exchange.submit(str(n), side=side, qty=str(qty), **terms)
    for ticks, restart in moves:
        exchange.move(quoted(str(150 + Decimal(ticks - 1) / 1000), str(150 + Decimal(ticks) / 1000)), restart=restart)
    for n, (terms, side, qty) in enumerate(orders):
        mine = [report for report in exchange.reports if report.venue_client_order_id == VenueClientOrderId(str(n))]
        fills = [report for report in mine if report.last_qty]
        filled = sum(report.last_qty for report in fills)
        order = exchange.orders[str(n)]
        assert filled == order.filled_qty <= qty
        assert (order.status == "FILLED") == (filled == qty)
        assert len({report.exec_id for report in mine}) == len(mine)
        if terms.get("time_in_force") == "FOK":
            assert filled in (0, qty)
        if "stop" in terms:
            assert [report.exec_type for report in mine].count("TRIGGERED") <= 1
            assert not fills or mine[0].exec_type == "TRIGGERED"
        if "price" in terms:
            limit = Decimal(terms["price"])
            assert all(
                report.last_price is not None
                and (report.last_price <= limit if side == "BUY" else report.last_price >= limit)
                for report in fills
            )
    if displayed is not None and not delay:
        for side in ("BUY", "SELL"):
            for at in {report.at for report in exchange.reports}:
                taken = sum(
                    report.last_qty
                    for report in exchange.reports
                    if report.at == at and orders[int(report.venue_client_order_id)][1] == side
                )
                assert taken <= int(displayed)
