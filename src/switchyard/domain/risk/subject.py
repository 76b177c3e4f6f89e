"""What a risk check looks at: one new order, its instrument and the market."""

from decimal import Decimal

import msgspec

from switchyard.domain.facts import Quote
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.instruments import Instrument
from switchyard.domain.orders import OrderRequest


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A checked and routed order before it is accepted."""

    account_id: AccountId
    order: OrderRequest
    instrument: Instrument
    venue: VenueName
    quote: Quote | None
    """The venue's market, where this process knows it."""

    @property
    def qty(self) -> Decimal:
        """The quantity in units."""
        return self.order.qty
