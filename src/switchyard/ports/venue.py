"""A venue: where orders are executed, and what may be relied on there."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, Protocol

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders import Order
from switchyard.domain.reasons import AmbiguousCode, RejectCode, UnsentCode
from switchyard.domain.reports import ExecutionIdScope, ExecutionReport, ReportStatus

Dedupe = Literal["forever", "open_only", "ttl", "none"]
Lookup = Literal["none", "open", "all"]

# The longest that a `submit` or `cancel` may take to put its bytes on the wire and hear of them: 2 s to connect, 5 s to
# be answered. What is sent in place of a worker that merely looks dead waits for this, so no adapter may exceed it.
SEND_LIMIT: Final = timedelta(seconds=7)
# The longest that a committed attempt may wait for the one before it in its line to leave; as long as connecting takes.
TURN_LIMIT: Final = timedelta(seconds=2)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the venue promises; how an order in doubt is settled rests on it."""

    dedupe: Dedupe
    """For how long a repeated client order id is recognised."""
    lookup: Lookup
    """Which orders can be found by their client order id: none, those still open, or those that have ended too.

    With `open`, an order that is not found may well have been executed.
    """
    acceptance_window: timedelta = timedelta(seconds=10)
    """How long after the send an order may still turn up."""
    request_expiry: bool = False
    """Whether the venue itself rejects a request that reaches it later than the acceptance window.

    The window must count from the attempt (the order's `updated_at`), not from when a paused sender wakes and writes.
    """
    execution_ids: ExecutionIdScope = "venue"
    """Within what an execution id is unique."""
    amend: bool = False
    """Whether an open order can be changed in place; declared for what is to come, nobody amends yet."""
    cancel_all: bool = False
    """Whether all open orders can be dropped at once; declared for what is to come, nobody asks for it yet."""


class Accepted(msgspec.Struct, frozen=True):
    """The venue has it."""

    venue_order_id: str
    already_processed: bool = False
    """Whether it had it before this attempt, and said so instead of taking it on."""


class VenueRejected(msgspec.Struct, frozen=True):
    """A rejection that the venue's documents call final."""

    code: RejectCode
    detail: str | None = None
    """The venue's own words or code."""


class Unsent(msgspec.Struct, frozen=True):
    """Proven: the venue has not got it (connection refused, throttled before processing)."""

    code: UnsentCode
    detail: str | None = None
    """For people."""
    retry_after: timedelta | None = None


class Ambiguous(msgspec.Struct, frozen=True):
    """Bytes left and no readable answer came back."""

    code: AmbiguousCode
    detail: str | None = None
    """For people."""


class VenueUnavailable(SwitchyardError):
    """The venue cannot be asked right now; that says nothing about what it has."""


SendOutcome = Accepted | VenueRejected | Unsent | Ambiguous


class VenueFill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution as the venue shows it: under the same id as in its report, so that neither counts twice."""

    exec_id: str
    qty: Decimal
    price: Decimal
    at: datetime


class VenueOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order as the venue has it."""

    venue_client_order_id: VenueClientOrderId
    venue_order_id: str
    status: ReportStatus
    filled_qty: Decimal
    fills: tuple[VenueFill, ...] = ()
    """Every execution so far; a venue that shows fewer than `filled_qty` leaves a gap that nobody guesses at."""


class ReportPage(msgspec.Struct, frozen=True):
    """Reports in the venue's own numbering; the last number is the cursor for the next page."""

    reports: Sequence[ExecutionReport]
    last_number: int


OnDeparture = Callable[[], None]


def ignore_departure() -> None:
    """For callers who need not know when a request has left."""


class Venue(Protocol):
    """One execution venue.

    Methods never raise for what a venue may do; they return it. The exception is a question that got no answer: 'none'
    would then claim that the order is absent, so it raises VenueUnavailable. An outcome speaks of one attempt alone:
    `Unsent` and `VenueRejected` on a resend say nothing about an earlier attempt that ended in doubt.
    """

    @property
    def name(self) -> VenueName:
        """What the router and the settings call it."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What may be relied on."""
        ...

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`.

        `on_departure` is called once the request is on its way, so that the next order may follow; an adapter that cannot
        tell leaves it, and the next one waits for the outcome.
        """
        ...

    async def cancel(self, order: Order) -> SendOutcome:
        """Ask to drop an order, by its `venue_client_order_id`."""
        ...

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """The order as the venue has it, or none; raises VenueUnavailable where the venue cannot tell."""
        ...

    async def open_orders(self) -> Sequence[VenueOrder]:
        """Every order that the venue may still fill; raises VenueUnavailable where the venue cannot tell."""
        ...

    async def reports(self, after: int, limit: int) -> ReportPage:
        """The next execution reports; waits a short while when there are none, or no way to learn of them."""
        ...

    def quote(self, symbol: str) -> Quote | None:
        """The market right now, where the adapter knows it without asking."""
        ...

    async def ask_quote(self, symbol: str) -> Quote | None:
        """The market right now, or none where the venue has none; raises VenueUnavailable."""
        ...
