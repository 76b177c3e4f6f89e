"""An adapter to copy: a venue that is never reached, and that says so truthfully in every method.

| method | required | to get right |
|---|---|---|
| `name`, `capabilities` | yes | declare no more than the venue's documents promise: how doubt is settled rests on it |
| `start`, `close` | where there is something to open | not in the port; `bootstrap` calls them |
| `submit` | yes | under `order.venue_client_order_id`, once, within `SEND_LIMIT`: no retry of the library's, no redirect |
| `cancel` | yes | by `order.venue_client_order_id`; a repeated cancel is harmless |
| `reports` | yes | numbered by the venue; never a number behind a report that could not be read |
| `find_by_client_order_id` | unless `lookup="none"` | none only where the venue says so; every fill under its report's id |
| `open_orders` | unless `lookup="none"` | all of them, or VenueUnavailable; the sweep asks for those that differ |
| `quote` | optional | none unless it is known without asking |

What a capability promises:

| capability | declare it only if |
|---|---|
| `dedupe` | a repeated client order id is answered or rejected, and never executed, for that long |
| `lookup="open"` | an order that the venue may still fill is found; one that has ended may be forgotten |
| `lookup="all"` | every order ever taken on is found: what is absent is sent again |
| `acceptance_window` | an order is found, or will never exist, so long after its bytes left |
| `request_expiry` | each request bears an end (`order.updated_at` and the window) that the venue itself enforces |
| `execution_ids` | the venue's own execution ids repeat outside of `symbol`, or of one `order` |
| `amend`, `cancel_all` | the venue can; nothing here uses them yet |

What a send came to, and nothing else decides it but whether a byte may have left and what came back:

| what happened | outcome |
|---|---|
| refused connection, failed name lookup, no free connection | `Unsent` |
| throttled before it was looked at (429) | `Unsent`, with `retry_after` |
| a rejection that the venue's documents call final | `VenueRejected` |
| an answer that shows this very order | `Accepted`; `already_processed` where it says that it had it before |
| everything else: time-out, disconnect, 5xx, an answer that cannot be read or is about something else | `Ambiguous` |

Then add the adapter to the fixture of `tests/contract/test_venues.py`.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders import Order
from switchyard.ports.venue import (
    Capabilities,
    OnDeparture,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueUnavailable,
    ignore_departure,
)

# How long `reports` waits when there are none: without a wait its reader would ask in a circle.
WAIT_SECONDS = 0.5


class TemplateVenue:
    """Replace this with one sentence on what stands behind it."""

    def __init__(self, name: VenueName) -> None:
        self._name = name

    @property
    def name(self) -> VenueName:
        """What the router and the settings call it."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """The weakest there are: at most once, and a person decides what is in doubt."""
        return Capabilities(dedupe="none", lookup="none", acceptance_window=timedelta(seconds=10))

    async def start(self) -> None:
        """Open what is needed to send."""

    async def close(self) -> None:
        """Give it back; what is under way ends in doubt, never in silence."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`; calls `left` when the request is on its way."""
        return Unsent("VENUE_DOWN", "not implemented")

    async def cancel(self, order: Order) -> SendOutcome:
        """Ask to drop an order, by its `venue_client_order_id`."""
        return Unsent("VENUE_DOWN", "not implemented")

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """The order as the venue has it, or none; raises VenueUnavailable where the venue cannot tell."""
        raise VenueUnavailable(f"{self._name} cannot be asked for an order")

    async def open_orders(self) -> Sequence[VenueOrder]:
        """Every order that the venue may still fill; raises VenueUnavailable where the venue cannot tell."""
        raise VenueUnavailable(f"{self._name} cannot be asked for its open orders")

    async def reports(self, after: int, limit: int) -> ReportPage:
        """The next execution reports; waits a short while when there are none."""
        await asyncio.sleep(WAIT_SECONDS)
        return ReportPage((), after)

    def quote(self, symbol: str) -> Quote | None:
        """The market right now, where it is known without asking."""
        return None

    async def ask_quote(self, symbol: str) -> Quote | None:
        """The market right now, or none where the venue has none; raises VenueUnavailable."""
        return self.quote(symbol)
