"""A new order with all that is decided on: its instrument, its venue and the market."""

from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.facts import Quote, RouteFact
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.instruments import Instrument
from switchyard.domain.money import ONE, ROUNDED
from switchyard.domain.orders import OrderRequest

Closes = Literal["part", "whole"]
"""How much of a position an order has to close."""

_HALF = Decimal("0.5")


class OrderContext(msgspec.Struct, frozen=True, kw_only=True):
    """A checked and routed order before it is accepted."""

    account_id: AccountId
    order: OrderRequest
    instrument: Instrument
    venue: VenueName
    quote: Quote | None
    """The venue's market when the order arrived, if this process knows it."""
    route: RouteFact | None = None
    """How the venue was chosen, if it was not simply the preferred one."""
    closes: Closes | None = None
    """None for an order that need not reduce a position."""

    @property
    def price(self) -> Decimal | None:
        """The price to judge the order by: its own, or the quote that a MARKET order would meet; none without one.

        A SELL STOP order gets its stop price at most. A BUY STOP order pays at least that, and the market where it has
        passed the stop price already, so it needs a quote as well.
        """
        order = self.order
        if order.price is not None:
            return order.price
        if order.stop_price is not None and order.side == "SELL":
            return order.stop_price
        if self.quote is None:
            return None
        price = self.quote.ask if order.side == "BUY" else self.quote.bid
        if price <= 0:
            return None
        return price if order.stop_price is None else max(price, order.stop_price)

    @property
    def mid(self) -> Decimal | None:
        """The middle of the market; none without a quote."""
        return mid_of(self.quote)

    @property
    def notional(self) -> Decimal | None:
        """Quantity times price times multiplier, in the settlement currency; none without a price."""
        price = self.price
        if price is None:
            return None
        notional = ROUNDED.multiply(self.order.qty, price)
        multiplier = self.instrument.multiplier
        return notional if multiplier is ONE else ROUNDED.multiply(notional, multiplier)


def mid_of(quote: Quote | None) -> Decimal | None:
    """The middle between bid and ask; none without a quote that has both."""
    if quote is None or quote.bid <= 0 or quote.ask <= 0:
        return None
    return ROUNDED.multiply(ROUNDED.add(quote.bid, quote.ask), _HALF)
