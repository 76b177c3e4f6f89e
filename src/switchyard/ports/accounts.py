"""The account port: read-only lookups of what an account has open now."""

from typing import Protocol

import msgspec

from switchyard.domain.accounts.positions import Position
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.orders.order import Order


class UnfinishedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects a page of an account's orders that have not ended, oldest first; none: any."""

    account_id: AccountId
    symbol: str | None = None
    strategy: str | None = None
    venue: VenueName | None = None
    after: OrderId | None = None
    """The last id of the previous page."""
    limit: int = 100

    def selects(self, order: Order) -> bool:
        """Whether the order belongs to what is selected, whether it has ended or not."""
        return (
            order.account_id == self.account_id
            and self.symbol in (None, order.symbol)
            and self.strategy in (None, order.strategy)
            and self.venue in (None, order.venue)
            and order.order_id > (self.after or "")
        )


class Accounts(Protocol):
    """Bounded lookups; their cost depends on what is open, not on what has ended. A page has at most PAGE_MAX items."""

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """Return a page of the orders that have not ended, sorted by id, in doubt or not sent yet included."""
        ...

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """Return a page of the positions that are not flat, sorted by the bytes of their symbols."""
        ...
