"""A strategy whose figures are worked out by hand, and the pieces to build others."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.strategies.metrics import Basis, Fill, Measured, Slippage, StrategyOrder, Track, Window, measure
from switchyard.domain.strategies.registry import Capital

START = datetime(2026, 1, 5, tzinfo=UTC)
WINDOW = Window(START, START + timedelta(days=5))
CAPITAL = Capital(amount=Decimal(10_000), currency="USD")


def fill(
    day: int, hour: int, side: Any, qty: str, price: str, fee: str = "0", *, order: str = "o", **more: Any
) -> Fill:
    """A fill on the given day of the window, counted from 1."""
    values: dict[str, Any] = {"account_id": AccountId("acct"), "symbol": "ABC", "currency": "USD", **more}
    return Fill(
        at=START + timedelta(days=day - 1, hours=hour),
        order_id=OrderId(order),
        exec_id=f"x-{order}-{day}-{hour}",
        venue=VenueName("sim"),
        side=side,
        qty=Decimal(qty),
        price=Decimal(price),
        fee=Decimal(fee),
        **values,
    )


def order(name: str, of: Fill | None, milliseconds: int = 0, quote: tuple[str, str] | None = None, **more: Any) -> Any:
    """The order of a fill, accepted so many milliseconds before it."""
    at = START if of is None else of.at
    market = None if quote is None else Quote(bid=Decimal(quote[0]), ask=Decimal(quote[1]))
    return StrategyOrder(
        order_id=OrderId(name), accepted_at=at - timedelta(milliseconds=milliseconds), quote=market, **more
    )


# A long round trip that wins 50 less 2 of fees; a short one that loses 20, wins 10 and pays 4.
FILLS = (
    fill(1, 9, "BUY", "100", "10", "1", order="o1"),
    fill(1, 12, "SELL", "100", "10.5", "1", order="o2"),
    fill(2, 6, "SELL", "200", "10", "2", order="o3"),
    fill(3, 6, "BUY", "100", "10.2", "1", order="o4"),
    fill(5, 6, "BUY", "100", "9.9", "1", order="o5"),
)
ORDERS = (
    order("o1", FILLS[0], 50, ("9.99", "10.01")),
    order("o2", FILLS[1], 100, ("10.50", "10.54")),
    order("o3", FILLS[2], 250, ("10.00", "10.04"), doubted=True),
    order("o4", FILLS[3], 20, ("10.14", "10.16")),
    order("o5", FILLS[4], 30),
    order("o6", None, rejected=True),
    order("o7", None, rejected=True, blocked=True),
)
# By hand: daily net P&L 48, -2, -21, 0, 9; sum 34, sum of squares 2830, of the losses 445.
FIGURES = {
    "sharpe": "5.09681549",  # sqrt(365 × 34² × 4 / (5 × (5 × 2830 - 34²)))
    "sortino": "13.77083712",  # sqrt(365 × 34² / (5 × 445))
    "max_drawdown": "0.00228901",  # from 10,048 to 10,025
    "win_rate": "0.5",
    "profit_factor": "3.42857143",  # 48 / 14
    "turnover": "0.606",  # (1000 + 1050 + 2000 + 1020 + 990) / 10,000
    "exposure": "0.0825",  # 1000 for 3 h, 2000 for 24 h, 1000 for 48 h; over 120 h and 10,000
    "fees": "6",
    "slippage": "21.69197397",  # (0 + 2 + 4 + 5) / (1000 + 1052 + 2004 + 1015); o5 has no quote
    "reject_rate": "0.16666667",  # o6 of six; o7 was blocked by a kill
    "unknown_rate": "0.16666667",  # o3 of six
    "fill_latency": "50",  # the median of 20, 30, 50, 100, 250
}


def measured(
    fills: Sequence[Fill],
    orders: Sequence[StrategyOrder] = (),
    *,
    window: Window = WINDOW,
    capital: Capital | None = CAPITAL,
    days_per_year: int = 365,
) -> tuple[Track, Measured]:
    """The figures of a strategy."""
    track, slippage = Track(window), Slippage()
    by_id = {each.order_id: each for each in orders}
    for each in fills:
        track.take(each)
        if window.covers(each.at):
            slippage.take(each, by_id.get(each.order_id))
    track.finish()
    return track, measure(track, orders, slippage, Basis(capital, days_per_year))
