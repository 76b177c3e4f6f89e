"""For one order on one state, one more rule never lets more through."""

from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.ids import AccountId
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.risk.checks import OrderContext, RiskLimits
from tests.support.risk import a_subject, reasons_of

ACCOUNTS = [AccountId("acctA"), AccountId("acctB")]
SYMBOLS = ["BTC", "ETH"]
PAIRS = [(account, symbol) for account in ACCOUNTS for symbol in SYMBOLS]
SIDES = ["BUY", "SELL"]
TYPES = ["LIMIT", "MARKET"]

amounts = st.integers(1, 400).map(lambda number: Decimal(number) / 4)
notionals = st.integers(1, 40_000).map(Decimal)
sides = st.frozensets(st.sampled_from(SIDES))
types = st.frozensets(st.sampled_from(TYPES))

# One rule: the field and its value. Limits of an account are further down, because they replace the global one.
rules = st.one_of(
    st.tuples(st.sampled_from(["max_qty", "min_price", "max_price"]), amounts),
    st.tuples(st.just("max_notional"), notionals),
    st.tuples(st.just("allowed_sides"), sides),
    st.tuples(st.just("allowed_types"), types),
    st.tuples(st.just("restricted_symbols"), st.sampled_from(SYMBOLS)),
    st.tuples(st.sampled_from(["min_price_by_account", "max_price_by_account"]), st.sampled_from(ACCOUNTS), amounts),
    st.tuples(st.sampled_from(["min_price_by_symbol", "max_price_by_symbol"]), st.sampled_from(SYMBOLS), amounts),
    st.tuples(st.just("max_qty_by_account_symbol"), st.sampled_from(PAIRS), amounts),
    st.tuples(st.just("max_notional_by_account_symbol"), st.sampled_from(PAIRS), notionals),
    st.tuples(
        st.just("allowed_symbols_by_account"), st.sampled_from(ACCOUNTS), st.frozensets(st.sampled_from(SYMBOLS))
    ),
    st.tuples(st.just("allowed_sides_by_account"), st.sampled_from(ACCOUNTS), sides),
    st.tuples(st.just("allowed_sides_by_symbol"), st.sampled_from(SYMBOLS), sides),
    st.tuples(st.just("allowed_types_by_account"), st.sampled_from(ACCOUNTS), types),
    st.tuples(st.just("allowed_types_by_symbol"), st.sampled_from(SYMBOLS), types),
)
account_rules = st.one_of(
    st.tuples(st.just("max_qty_by_account"), st.sampled_from(ACCOUNTS), amounts),
    st.tuples(st.just("max_notional_by_account"), st.sampled_from(ACCOUNTS), notionals),
)
quotes = st.none() | st.builds(
    lambda bid, spread: Quote(bid=bid, ask=bid + spread), amounts, st.integers(0, 20).map(Decimal)
)


@st.composite
def subjects(draw: st.DrawFn) -> OrderContext:
    """An order with its market and its instrument."""
    percent = st.none() | st.integers(1, 60).map(Decimal)
    instrument = Instrument(
        symbol=draw(st.sampled_from(SYMBOLS)),
        multiplier=draw(st.sampled_from([Decimal(1), Decimal(3)])),
        min_qty=draw(st.none() | amounts),
        max_qty=draw(st.none() | amounts),
        collar_percent=draw(percent),
    )
    return a_subject(
        draw(st.sampled_from(ACCOUNTS)),
        instrument=instrument,
        quote=draw(quotes),
        side=draw(st.sampled_from(SIDES)),
        qty=draw(amounts),
        price=draw(st.none() | amounts),
    )


def with_rule(limits: RiskLimits, rule: tuple[Any, ...]) -> RiskLimits | None:
    """The limits and one more rule; none where they already have this one."""
    field, *key, value = rule
    held = getattr(limits, field)
    if field == "restricted_symbols":
        return msgspec.structs.replace(limits, restricted_symbols=held | {value})
    if not key:
        return msgspec.structs.replace(limits, **{field: value}) if held is None else None
    return None if key[0] in held else msgspec.structs.replace(limits, **{field: {**held, key[0]: value}})


@given(st.lists(rules | account_rules, max_size=8), rules, subjects())
def test_one_more_rule_never_lets_an_order_through(
    earlier: list[tuple[Any, ...]], added: tuple[Any, ...], subject: OrderContext
) -> None:
    limits = RiskLimits()
    for rule in earlier:
        limits = with_rule(limits, rule) or limits
    more = with_rule(limits, added)
    if more is not None and reasons_of(limits, subject):
        # A global limit does not bind an account with one of its own, but it never frees it either.
        assert reasons_of(more, subject)


@given(st.lists(rules, max_size=8), account_rules, subjects())
def test_a_limit_of_an_account_lets_more_through_only_where_it_replaces_a_stricter_global_one(
    earlier: list[tuple[Any, ...]], added: tuple[Any, ...], subject: OrderContext
) -> None:
    limits = RiskLimits()
    for rule in earlier:
        limits = with_rule(limits, rule) or limits
    more = with_rule(limits, added)
    assert more is not None
    field, _, value = added
    everywhere = getattr(limits, field.removesuffix("_by_account"))
    if reasons_of(limits, subject) and not reasons_of(more, subject):
        assert everywhere is not None and everywhere < value
