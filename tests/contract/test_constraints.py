"""`risk_constraints` of `/do/order`, checked against positions in a real database."""

from collections.abc import Sequence
from decimal import Decimal

import pytest

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, account_total
from switchyard.domain.decisions import apply_report
from switchyard.domain.errors import BrokerFailed, ConstraintViolated
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.do_order import do_order_request
from switchyard.flow.risk.pre_trade import Constraints
from tests.support.build import ACCOUNT, VENUE, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.do_order import body
from tests.support.journal_checks import commit
from tests.support.memory.clock import START


class OneQuote:
    """`Quotes` that always returns the same quote."""

    def __init__(self, quote: Quote | None) -> None:
        self._quote = quote

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        return self._quote

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        return self._quote


async def trade(database: Database, results: Sequence[int], symbol: str = "USDJPY") -> None:
    """Open and close a position of one unit for each of these results."""
    key, total_key = (ACCOUNT, symbol), (ACCOUNT, ACCOUNT_TOTAL)
    for result in results:
        for side, price in (("BUY", 100), ("SELL", 100 + result)):
            accepted = an_accept(symbol=symbol, side=side, qty=Decimal(1), price=Decimal(price))
            await commit(database.journal, accepted)
            state = state_after(accepted)
            held = await database.journal.load_positions([key, total_key])
            total = held.get(total_key) or account_total(ACCOUNT, START)
            report = a_report(state, exec_id=f"{state.order.order_id}-{side}")
            await commit(database.journal, apply_report(state, held.get(key), report, START, total=total))


async def check(database: Database, quote: Quote | None = None, *, capital: int = 0, **limits: object) -> None:
    request = do_order_request(body("k", qty=Decimal("0.1"), risk_constraints=limits))
    await Constraints(database.journal, OneQuote(quote), Decimal(capital)).check(ACCOUNT, request, VENUE)


async def test_an_account_without_trades_passes_every_constraint_on_results(database: Database) -> None:
    await check(database, max_dd=0, max_consecutive_loss=0)


async def test_consecutive_losses_are_those_of_the_whole_account(database: Database) -> None:
    await trade(database, [-1, 5, -1, -2])
    await trade(database, [-1], "EURUSD")
    await check(database, max_consecutive_loss=3)
    with pytest.raises(ConstraintViolated) as caught:
        await check(database, max_consecutive_loss=2)
    assert (caught.value.reason_code, caught.value.field) == (
        "MAX_CONSECUTIVE_LOSS",
        "risk_constraints.max_consecutive_loss",
    )
    await trade(database, [1], "GBPUSD")
    await check(database, max_consecutive_loss=0)


async def test_a_drawdown_is_that_of_the_whole_account(database: Database) -> None:
    await trade(database, [20], "EURUSD")
    await trade(database, [-3])  # alone, this symbol has an infinite drawdown
    await check(database, max_dd=Decimal("0.15"))
    await trade(database, [-3], "GBPUSD")
    with pytest.raises(ConstraintViolated):
        await check(database, max_dd=Decimal("0.29"))
    await check(database, max_dd=Decimal("0.3"))  # a drawdown that equals the limit is allowed


async def test_a_gain_resets_consecutive_losses(database: Database) -> None:
    await trade(database, [-1, -2, 1])
    await check(database, max_consecutive_loss=0)


async def test_a_drawdown_is_a_ratio_of_the_high_water_mark(database: Database) -> None:
    await trade(database, [20, -3, 1])
    await check(database, max_dd=Decimal("0.1"))
    with pytest.raises(ConstraintViolated) as caught:
        await check(database, max_dd=Decimal("0.09"))
    assert caught.value.reason_code == "MAX_DD"


async def test_a_loss_without_capital_or_earlier_gain_exceeds_every_ratio(database: Database) -> None:
    await trade(database, [-1])
    with pytest.raises(ConstraintViolated):
        await check(database, max_dd=1000)
    await check(database, capital=10, max_dd=Decimal("0.1"))
    with pytest.raises(ConstraintViolated):
        await check(database, capital=9, max_dd=Decimal("0.1"))


async def test_a_spread_is_a_ratio_of_the_mid_price(database: Database) -> None:
    quote = Quote(bid=Decimal("99.9"), ask=Decimal("100.1"))
    await check(database, quote, max_spread=Decimal("0.002"))
    with pytest.raises(ConstraintViolated) as caught:
        await check(database, quote, max_spread=Decimal("0.0019"))
    assert caught.value.reason_code == "MAX_SPREAD"


@pytest.mark.parametrize("quote", [None, Quote(bid=Decimal(0), ask=Decimal(0))])
async def test_a_spread_constraint_fails_without_a_quote(database: Database, quote: Quote | None) -> None:
    with pytest.raises(BrokerFailed):
        await check(database, quote, max_spread=1000)
    await check(database, quote)
