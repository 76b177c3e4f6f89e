"""The plan of the demo: the same seed gives the same orders, and every kind of order is among the first ones."""

from itertools import islice

from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS
from switchyard.domain.values import is_multiple
from switchyard.entrypoints.cli.demo.plan import MANNERS, TRADERS, planned_orders


def test_the_same_seed_gives_the_same_orders() -> None:
    first, again, other = (list(islice(planned_orders(seed), 300)) for seed in (7, 7, 8))
    assert first == again != other
    assert [order.number for order in first] == list(range(1, 301))


def test_a_minute_of_the_day_has_every_kind_of_order_of_every_strategy() -> None:
    orders = list(islice(planned_orders(1), 200))
    assert {order.manner for order in orders} == set(MANNERS)
    assert {order.trader for order in orders} == set(TRADERS)
    for order in orders:
        assert is_multiple(order.qty, DEFAULT_INSTRUMENTS[order.symbol].step), order
