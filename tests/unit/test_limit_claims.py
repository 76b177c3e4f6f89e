"""The claims of an order: guesses are corrected by the commit, and end in a claim or a rejection."""

from datetime import timedelta
from decimal import Decimal

import pytest

from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.risk.checks import OrderContext, Violation
from switchyard.domain.risk.claims import Breach, Limits, LimitSettings
from switchyard.domain.risk.exposure import AccountExposure, SymbolExposure
from switchyard.flow.risk.limit_claims import REVISIONS_MAX, LimitClaims
from tests.support.memory.clock import START

ACCOUNT = AccountId("acc-1")
LONG = SymbolExposure(Decimal(10))
FLAT = SymbolExposure()
TOO_MANY = Breach("LIMIT_OPEN_ORDERS", Decimal(2), Decimal(1))
NOT_REDUCING = Breach("NOT_REDUCING", Decimal(5), Decimal(0), True)


class ScriptedExposures:
    """Answers in turn; `fresh` notes which answers had to be."""

    def __init__(self, *answers: SymbolExposure) -> None:
        self.answers = list(answers)
        self.fresh: list[bool] = []

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        self.fresh.append(fresh)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        return AccountExposure()


def a_sell(*, priced: bool = True, quote: Quote | None = None) -> OrderContext:
    order = OrderRequest(
        symbol="BTC",
        side="SELL",
        type="LIMIT" if priced else "MARKET",
        qty=Decimal(5),
        price=Decimal(100) if priced else None,
        time_in_force="GTC",
    )
    instrument = Instrument(symbol="BTC", settle="USD")
    return OrderContext(account_id=ACCOUNT, order=order, instrument=instrument, venue=VenueName("sim"), quote=quote)


def under(exposures: ScriptedExposures, **limits: object) -> LimitClaims:
    return LimitClaims(LimitSettings(**limits), exposures)  # type: ignore[arg-type]


async def test_without_limits_nothing_is_asked_and_nothing_is_claimed() -> None:
    exposures = ScriptedExposures(LONG)
    claim = await under(exposures).claim_of(a_sell(), None)
    assert (claim.violation, claim.is_bound, exposures.fresh) == (None, False, [])
    assert (claim.terms.price, claim.terms.currency) == (Decimal(100), "USD")


async def test_a_guess_that_the_order_is_reducing_is_taken_back() -> None:
    claims = under(ScriptedExposures(LONG, FLAT), max_open_orders=1)
    claim = await claims.claim_of(a_sell(), None)
    assert claim.terms.reducing

    claim = await claims.revised(claim, NOT_REDUCING)

    assert (claim.terms.reducing, claim.violation, claim.is_bound) == (False, None, True)
    claim = await claims.revised(claim, TOO_MANY)
    assert claim.violation == Violation(
        "LIMIT_OPEN_ORDERS", "account acc-1 would have 2 open orders, allowed are 1 (RISK_MAX_OPEN_ORDERS)"
    )


async def test_before_a_rejection_it_is_asked_again_whether_the_order_is_reducing() -> None:
    exposures = ScriptedExposures(FLAT, LONG)
    claims = under(exposures, max_open_orders=1)
    claim = await claims.claim_of(a_sell(), None)
    assert not claim.terms.reducing

    claim = await claims.revised(claim, TOO_MANY)

    assert (claim.terms.reducing, claim.violation) == (True, None)
    assert exposures.fresh == [False, True]


async def test_an_order_that_is_now_reducing_and_now_not_is_rejected_at_last() -> None:
    claims = under(ScriptedExposures(LONG), max_open_orders=1)
    claim = await claims.claim_of(a_sell(), None)
    revisions = 0
    while claim.violation is None:
        claim = await claims.revised(claim, NOT_REDUCING if claim.terms.reducing else TOO_MANY)
        revisions += 1
    assert claim.violation.reason == "LIMIT_OPEN_ORDERS"
    assert revisions <= REVISIONS_MAX + 1


class TestWaived:
    SMALL = Violation("MIN_ORDER_SIZE", "too small")

    async def test_a_reducing_order_is_exempt_as_long_as_the_commit_agrees(self) -> None:
        exposures = ScriptedExposures(LONG)
        claims = under(exposures)
        claim = await claims.claim_of(a_sell(), self.SMALL)
        assert (claim.violation, claim.terms.reducing, claim.is_bound) == (None, True, True)
        assert exposures.fresh == [True]

        assert (await claims.revised(claim, NOT_REDUCING)).violation == self.SMALL

    async def test_another_order_is_rejected(self) -> None:
        assert (await under(ScriptedExposures(FLAT)).claim_of(a_sell(), self.SMALL)).violation == self.SMALL

    async def test_other_rules_bind_reducing_orders_too(self) -> None:
        rule = Violation("RISK_MAX_QTY", "too large")
        assert (await under(ScriptedExposures(LONG), max_open_orders=9).claim_of(a_sell(), rule)).violation == rule


class TestWithoutPrice:
    async def test_a_limit_on_money_rejects(self) -> None:
        exposures = ScriptedExposures(FLAT)
        claim = await under(exposures, max_gross_exposure=Decimal(1)).claim_of(a_sell(priced=False), None)
        assert claim.violation == Violation("LIMIT_NO_PRICE", "a limit needs a price, and BTC has no quote")
        assert exposures.fresh == [True]

    async def test_a_reducing_order_passes(self) -> None:
        claim = await under(ScriptedExposures(LONG), max_gross_exposure=Decimal(1)).claim_of(a_sell(priced=False), None)
        assert claim.violation is None

    async def test_a_limit_on_quantities_does_not_ask_for_one(self) -> None:
        claim = await under(ScriptedExposures(FLAT), max_position=Decimal(1)).claim_of(a_sell(priced=False), None)
        assert (claim.violation, claim.is_bound) == (None, True)


async def test_a_claim_has_the_day_and_the_window_of_its_time() -> None:
    limits = {
        "max_daily_loss": Decimal(5),
        "max_orders_per_window": 3,
        "orders_window": timedelta(seconds=10),
    }
    claims = under(ScriptedExposures(FLAT), **limits)
    claim = await claims.claim_of(a_sell(), None)
    bound = claims.for_commit(claim, OrderId("ord_x"), START)
    assert bound is not None
    assert bound.limits == Limits(daily_loss=Decimal(5), window_orders=3)
    assert bound.day == START.date()
    earlier = claims.for_commit(claim, OrderId("ord_x"), START - timedelta(seconds=1))
    assert earlier is not None and earlier.since is not None and bound.since is not None
    assert earlier.since < bound.since


@pytest.mark.parametrize(("held", "passes"), [(LONG, True), (FLAT, False)])
async def test_the_dry_run_shows_each_limit(held: SymbolExposure, passes: bool) -> None:
    claims = under(ScriptedExposures(held), max_position=Decimal(1), max_open_orders=5)
    results = {result.name: result.violation is None for result in await claims.checks(a_sell(), START)}
    assert results == {"LIMIT_POSITION": passes, "LIMIT_OPEN_ORDERS": True}
