"""A venue adapter to copy. It reaches no venue, and every method returns the correct result for that case.

| method | required | rule |
|---|---|---|
| `name`, `capabilities` | yes | declare only what the venue's documents guarantee: resends depend on it |
| `start`, `close` | if the adapter opens connections | not in the port; `bootstrap` calls them |
| `submit` | yes | send once under `order.venue_client_order_id`, within `SEND_LIMIT`: no retry, no redirect |
| `submit_many` | inherited | override it if one request can carry several orders; every order has an outcome |
| `cancel` | yes | by `order.venue_client_order_id`; a repeated cancel must have no effect |
| `amend` | unless `amend="none"` | under the amend's own id, naming the last one; never as a cancel and a new order |
| `reports` | yes | in the venue's numbering; VenueUnavailable on failure, because an error is not an empty page |
| `find_by_client_order_id` | unless `lookup="none"` | None only if the venue says so; fills under their report's id |
| `open_orders` | unless `lookup="none"` | all of them in pages, or VenueUnavailable; the sweep compares them |
| `probe` | yes | harmless, over the same way as the lookups; VenueUnavailable on failure, as the evidence counts it |

Declare a capability only if this holds:

| capability | condition |
|---|---|
| `dedupe` | for that long, the venue answers or rejects a repeated client order id and never executes it again |
| `lookup="open"` | the venue finds every order that it may still fill; ended orders may be missing |
| `lookup="all"` | the venue finds every order that it ever accepted: an absent order is sent again |
| `acceptance_window` | after this time since the send, the order is found or will never exist; None if not documented |
| `hop_hold` | a proxy in between holds no request longer than this |
| `request_expiry` | the venue rejects a request that arrives after `order.updated_at` plus the window, in venue time |
| `execution_ids` | the scope within which execution ids are unique: the venue, one `symbol` or one `order` |
| `batch_max` | the most orders that one request may carry, all within `SEND_LIMIT`; 1 with `OneByOne` |
| `amend="in_place"` | an amend that names an older id than the last is rejected; its own id finds the order |
| `amend="cancel_replace"` | the same, and the new order carries the fills on; execution ids are unique at the venue |
| `kinds` | the venue itself has these order types and times in force; a stop order must wait there |
| `cancel_all` | one request cancels all open orders of these credentials (`ports.venue.MassCancel`) |
| `reduce_only` | `submit` passes `order.reduce_only` on, and the venue then fills it only against an open position |

Giving up on a send must destroy what the kernel still holds of it (see `http/transport.py`). A report that cannot be
read goes to `ReportPage.unreadable`, and the page's cursor moves on. Fill in `fee`, `fee_currency`, `exec_type` and
`ref_exec_id` where the venue sends them, in reports and in lookups; a correction or bust must have its `exec_type`,
because its quantity would otherwise count as a new fill.

The outcome of a send depends only on whether a byte may have been sent and on the response:

| event | outcome |
|---|---|
| connection refused, failed name lookup, no free connection | `Unsent` |
| throttled before processing (429) | `Unsent`, with `retry_after` and `bytes_sent` |
| a rejection that the venue's documents call final | `VenueRejected` |
| a response that shows this order | `Accepted`; `already_processed` if the venue had it before this attempt |
| anything else: time-out, disconnect, 5xx, a response that cannot be decoded or shows another order | `Ambiguous` |

Quotes are a separate port: `QuoteFeed` for a venue that must be asked, `QuoteSource` for one that is known without a
request (see `http/quotes.py` and `paper/market.py`); `bootstrap/venues.py` opens them.

Then open it in `bootstrap/venues.py` and add it to the fixture of `tests/contract/test_venues.py`; ARCHITECTURE.md
('Where new code goes') lists the other files.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from switchyard.adapters.venues.one_by_one import OneByOne
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import (
    Capabilities,
    OnDeparture,
    ProbeResult,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    ignore_departure,
)

# `reports` waits this long if there are none; without a wait its reader would loop without pause.
WAIT_SECONDS = 0.5


class TemplateVenue(OneByOne):
    """Replace this with one sentence that names the venue."""

    def __init__(self, name: VenueName) -> None:
        self._name = name

    @property
    def name(self) -> VenueName:
        """The venue's name in the router and the settings."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """The weakest guarantees: orders are sent at most once, and an operator decides those in doubt."""
        return Capabilities(dedupe="none", lookup="none")

    async def start(self) -> None:
        """Open connections."""

    async def close(self) -> None:
        """Close connections; every send in flight must return `Ambiguous`."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`; calls `on_departure` once the request is being sent."""
        return Unsent("VENUE_DOWN", "not implemented")

    async def cancel(self, order: Order) -> SendOutcome:
        """Cancel an order by its `venue_client_order_id`."""
        return Unsent("VENUE_DOWN", "not implemented")

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        """Amend an order by the id that the venue knows it by now, `amend.orig_client_order_id`."""
        return VenueRejected("BAD_REQUEST", "not implemented")

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """Return the order as the venue has it, or None; raises VenueUnavailable if the venue does not answer."""
        raise VenueUnavailable(f"{self._name} has no order lookup")

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that the venue may still fill; raises VenueUnavailable if the venue does not answer."""
        raise VenueUnavailable(f"{self._name} has no order lookup")
        yield ()  # makes this a generator; yield one page per request here

    async def reports(self, after: int, limit: int) -> ReportPage:
        """Return the next execution reports; waits WAIT_SECONDS if there are none."""
        await asyncio.sleep(WAIT_SECONDS)
        return ReportPage((), after)

    async def probe(self) -> ProbeResult:
        """Ask the venue something harmless; raises VenueUnavailable."""
        raise VenueUnavailable(f"{self._name} has no probe")
