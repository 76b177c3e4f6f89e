"""The price collar before a resend: an order that was accepted at a fair price may be far from the market by now.

Reads the catalogue and the quotes of this process; writes nothing.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import amend_of
from switchyard.domain.orders.outbox import OutboxKey, OutboxRow
from switchyard.domain.risk.checks import Violation, order_collar
from switchyard.ports.outbox import Due
from switchyard.ports.quotes import Quotes


class Guard(Protocol):
    """A check of orders before they are sent."""

    async def breaches(self, page: Sequence[Due]) -> Mapping[OutboxKey, Violation]:
        """The rows of the page that must not be sent now, each with its reason."""
        ...


class Collars:
    """Judges orders and amends that are to be sent again; first attempts were judged when they were accepted."""

    def __init__(self, catalogue: Catalogue, quotes: Quotes) -> None:
        self._catalogue = catalogue
        self._quotes = quotes

    async def breaches(self, page: Sequence[Due]) -> Mapping[OutboxKey, Violation]:
        """The rows of the page that must not be sent again now, each with its reason.

        `COLLAR_NO_QUOTE` where no quote came in a brief time: such an order waits, unless its deadline passes.
        """
        again = [due for due in page if _was_judged_before(due.row) and self._has_collar(due)]
        if not again:
            return {}
        judged = await asyncio.gather(*map(self._breach, again))
        return {due.row.key: breach for due, breach in zip(again, judged, strict=True) if breach is not None}

    def _has_collar(self, due: Due) -> bool:
        return self._catalogue.find(due.state.order.symbol).collar_percent is not None

    async def _breach(self, due: Due) -> Violation | None:
        order = due.state.order
        quote = await self._quotes.ask(order.venue, order.symbol)
        if due.row.kind == "amend":
            amend = amend_of(due.row)
            order = replace(order, price=amend.price, stop_price=amend.stop_price)
        return order_collar(order, self._catalogue.find(order.symbol), quote)


def _was_judged_before(row: OutboxRow) -> bool:
    """Whether an order is to be sent again, or to another venue than the one whose market it was judged by."""
    return row.version > 1 if row.kind == "new" else row.kind == "amend" and row.attempt > 0


def waits_for_a_quote(
    due: Due, breaches: Mapping[OutboxKey, Violation], now: datetime, retries: decisions.RetryLimits
) -> bool:
    """Whether the order is to be sent again, cannot be judged by its collar yet, and may still wait for that."""
    breach = breaches.get(due.row.key)
    if breach is None or breach.reason != "COLLAR_NO_QUOTE":
        return False
    order = due.state.order
    return not decisions.is_past_deadline(order, now) and not retries.is_too_old(order, due.row, now)
