"""Stateful limits: what a new order claims, and how a breach is described. Their codes are in `reasons.py`."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Final, Literal, assert_never

import msgspec

from switchyard.domain.ids import OrderId
from switchyard.domain.money import ZERO, plain
from switchyard.domain.orders import Order
from switchyard.domain.risk.reservations import SUMS, Reserved, reserved

BreachCode = Literal[
    "NOT_REDUCING",  # never shown: the order is then judged as one that is not reducing; a close is decided again
    "LIMIT_ORDERS_PER_WINDOW",
    "LIMIT_DAILY_LOSS",
    "LIMIT_OPEN_ORDERS",
    "LIMIT_OPEN_NOTIONAL",
    "LIMIT_POSITION",
    "LIMIT_GROSS_EXPOSURE",
]


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one account and symbol; none: no limit. Money is in the settlement currency of the order."""

    open_orders: int | None = None
    """Open orders of the account."""
    symbol_open_orders: int | None = None
    """Open orders of the account in the symbol."""
    open_notional: Decimal | None = None
    """What the account's open orders reserve."""
    symbol_open_notional: Decimal | None = None
    position: Decimal | None = None
    """The position in the symbol, long or short, in the worst case."""
    gross_exposure: Decimal | None = None
    """The account's positions at their cost plus what its open orders reserve, without reducing ones."""
    symbol_gross_exposure: Decimal | None = None
    daily_loss: Decimal | None = None
    """The account's realised loss of the trading day; reached is enough."""
    window_orders: int | None = None
    """Orders of the account that were accepted within the window."""

    @property
    def needs_price(self) -> bool:
        """Whether one of the limits is on an amount of money that the order adds to."""
        amounts = (self.open_notional, self.symbol_open_notional, self.gross_exposure, self.symbol_gross_exposure)
        return any(amount is not None for amount in amounts)


NO_LIMITS: Final = Limits()

LIMITS_OF: Final[Mapping[BreachCode, tuple[str, ...]]] = {
    "LIMIT_ORDERS_PER_WINDOW": ("window_orders",),
    "LIMIT_DAILY_LOSS": ("daily_loss",),
    "LIMIT_OPEN_ORDERS": ("open_orders", "symbol_open_orders"),
    "LIMIT_OPEN_NOTIONAL": ("open_notional", "symbol_open_notional"),
    "LIMIT_POSITION": ("position",),
    "LIMIT_GROSS_EXPOSURE": ("gross_exposure", "symbol_gross_exposure"),
}
"""The limits behind each reason, in the order in which they are checked."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The limits under which a change may accept an order; the append checks them on the rows of that moment.

    An order that is taken as reducing is checked to be so, and by nothing else.
    """

    order_id: OrderId
    limits: Limits = NO_LIMITS
    day: date | None = None
    """The trading day whose realised loss counts."""
    since: OrderId | None = None
    """The lowest order id of the window."""
    whole: bool = False
    """Whether a reducing order has to leave nothing of the position in the worst case of its side."""
    before: Reserved | None = None
    """For an amend: what the order reserves before it; the limits are checked on what the amend adds."""
    was_reducing: bool = False


class Added(msgspec.Struct, frozen=True, gc=False):
    """What a claim adds to the totals of its account; an amend may add to one and take from another."""

    orders: int
    qty: Decimal
    notional: Decimal
    gross: Decimal
    """The part of the notional that counts as gross exposure: not that of a reducing order."""


def claimed_by(order: Order) -> Reserved:
    """What an order reserves that claims room."""
    held = reserved(order)
    assert held is not None, "an order that claims room is open"
    return held


def added_by(claim: Claim, order: Order, held: Reserved) -> Added:
    """What the claim of this order adds, which reserves `held` from now on."""
    before = claim.before
    gross = ZERO if order.reducing else held.notional
    if before is None:
        return Added(1, held.qty, held.notional, gross)
    gross_before = ZERO if claim.was_reducing else before.notional
    return Added(
        0,
        SUMS.subtract(held.qty, before.qty),
        SUMS.subtract(held.notional, before.notional),
        SUMS.subtract(gross, gross_before),
    )


class Breach(msgspec.Struct, frozen=True):
    """The limit that rejected a claim: what it allows, and what would have been reached."""

    reason: BreachCode
    reached: Decimal
    allowed: Decimal
    of_symbol: bool = False
    """Whether it is the limit of the account in the symbol, and not of the whole account."""


def described(
    breach: Breach, account: str, symbol: str, currency: str | None, window_seconds: float, setting: str
) -> str:
    """The breach as a sentence for the answer and the journal; `setting` is the one that has the limit."""
    reached, allowed = plain(breach.reached), plain(breach.allowed)
    owner = f"{account} in {symbol}" if breach.of_symbol else account
    money = f" {currency}" if currency else ""
    match breach.reason:
        case "LIMIT_ORDERS_PER_WINDOW":
            text = f"account {owner} would have placed {reached} orders in {window_seconds:g} s, allowed are {allowed}"
        case "LIMIT_DAILY_LOSS":
            text = f"account {owner} has realised a loss of {reached}{money} today, the limit is {allowed}{money}"
        case "LIMIT_OPEN_ORDERS":
            text = f"account {owner} would have {reached} open orders, allowed are {allowed}"
        case "LIMIT_OPEN_NOTIONAL":
            text = f"the open orders of account {owner} would reserve {reached}{money}, allowed are {allowed}{money}"
        case "LIMIT_POSITION":
            text = f"the position of account {owner} could become {reached}, allowed are {allowed}"
        case "LIMIT_GROSS_EXPOSURE":
            text = f"the gross exposure of account {owner} would be {reached}{money}, allowed are {allowed}{money}"
        case "NOT_REDUCING":
            raise AssertionError("an order that is not reducing is judged by its limits")
        case unreachable:
            assert_never(unreachable)
    return f"{text} ({setting})"
