"""Venues: send orders, amends and cancels, look orders up, read execution reports and statements, cancel all."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import AccountId, VenueClientOrderId, VenueName
from switchyard.domain.orders.amends import Amend, Amounts
from switchyard.domain.orders.order import Order, OrderKinds, OrderRequest, Side, lacking
from switchyard.domain.orders.reasons import AmbiguousCode, RejectCode, UnsentCode
from switchyard.domain.orders.reports import ExecType, ExecutionIdScope, ExecutionReport, ReportStatus
from switchyard.domain.reconcile.breaks import StatementFill

Dedupe = Literal[
    "permanent",  # a client order id is never accepted twice
    "ttl",  # not within `dedupe_ttl` of the first time
    "while_open",  # not while the first order is open
    "none",
]
Lookup = Literal["none", "open", "all"]
AmendMode = Literal[
    "in_place",  # the order keeps its id
    "cancel_replace",  # the order ends, and a new one with the amend's id takes its place, with the fills so far
    "none",
]
ProbeResult = Literal["answered", "busy"]
Sessions = Literal[
    "shared",  # every worker may use the venue at the same time
    "exclusive",  # it admits one session: one worker at a time sends to it, asks it and reads its reports
]

# The longest time that one call of `submit`, `submit_many`, `amend` or `cancel` may take: 2 s to connect, 5 s for the
# response.
# No adapter may exceed it, because it must pass before an order is resent in place of a worker that looks dead.
SEND_LIMIT: Final = timedelta(seconds=7)
# The share of `lookup_keeps` that is not used, and its minimum: clocks run at different speeds, and venues remove
# orders by the hour or by the day.
KEEPS_MARGIN: Final = 0.1
KEEPS_MARGIN_MIN: Final = timedelta(seconds=10)
# The longest time that a committed attempt may wait for the previous send of its account and symbol: time to connect.
TURN_LIMIT: Final = timedelta(seconds=2)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the venue guarantees; decides how an ambiguous send is resolved."""

    dedupe: Dedupe
    """For how long the venue recognises a repeated client order id."""
    lookup: Lookup
    """Which orders the venue finds by client order id: none, open ones, or also closed ones.

    With `open`, an order that is not found may have been executed.
    """
    dedupe_ttl: timedelta | None = None
    """With `ttl`: for how long after the first send."""
    lookup_keeps: timedelta | None = None
    """For how long after its first send the venue finds an order that has ended, or was never filled; None: for ever.

    After that, an order that is not found may have been executed.
    """
    acceptance_window: timedelta | None = None
    """How long after a send the order may still appear at the venue; None: not documented, so an order in doubt is
    never resent automatically."""
    hop_hold: timedelta = timedelta()
    """How long a proxy between us and the venue may hold a request and still deliver it."""
    sequence_proof: bool = False
    """Whether the venue can prove that it never received a message and never will (`ProvesUnreceived`).

    Such as by sequence numbers that neither side resets: what lies behind the number that the venue expects next has
    not arrived, and cannot arrive any more once that number was passed.
    """
    request_expiry: bool = False
    """Whether the venue rejects a request that arrives later than the acceptance window.

    The window must count from the attempt (the order's `updated_at`), not from the moment a paused sender resumes.
    """
    sessions: Sessions = "shared"
    """How many workers may use the venue at the same time under our credentials."""
    execution_ids: ExecutionIdScope = "venue"
    """The scope in which an execution id is unique."""
    batch_max: int = 1
    """How many orders one call of `submit_many` may carry; 1 where each order is a request of its own."""
    amend: AmendMode = "none"
    """How an open order is amended; with `none` an amend is rejected, never made of a cancel and a new order."""
    cancel_all: bool = False
    """Whether all open orders under our credentials can be cancelled with one request (`MassCancel`)."""
    kinds: OrderKinds = OrderKinds()
    """The order types and times in force that the venue has itself; all others are rejected when they arrive."""
    reduce_only: bool = False
    """Whether the venue itself sees to it that an order with the flag only reduces the position under our credentials.

    An order that closes a position is sent with the flag then. Otherwise only our own check at acceptance holds for it,
    and an order whose client asks for reduce-only is rejected when it arrives.
    """
    post_only: bool = False
    """Whether the venue itself rejects or cancels a post-only order that would trade when it arrives."""
    display_qty: bool = False
    """Whether the venue has iceberg orders, of which it shows only a part to the market."""
    cancel_on_disconnect: bool = False
    """Whether the venue cancels open orders when a connection to it ends, so also when we restart."""
    cancel_all_after: bool = False
    """Whether the venue has a dead man's switch for all open orders under our credentials (`CancelAllAfter`)."""

    @property
    def proves_absence(self) -> bool:
        """Whether a lookup that finds nothing proves, after some time, that the venue does not have a message.

        It must find closed orders too, and document when a late copy can no longer be executed.
        """
        return self.lookup == "all" and self.dedupe != "none" and self.acceptance_window is not None

    def remembers(self, sent_since: datetime, now: datetime, jumped_at: datetime | None) -> bool:
        """Whether a lookup that is answered now finds an order, if the venue had it, that was not sent before this
        time.

        `jumped_at`: of the clock. How old a date before that is cannot be told.
        """
        if self.lookup_keeps is None:
            return True
        margin = max(self.lookup_keeps * KEEPS_MARGIN, KEEPS_MARGIN_MIN)
        is_dated = jumped_at is None or sent_since >= jumped_at
        return is_dated and now - sent_since < self.lookup_keeps - margin


def supports(capabilities: Capabilities, order: Order | OrderRequest) -> bool:
    """Whether the venue has what the order asks for; an order must not go to a venue that has not."""
    return lacking(capabilities, order) is None


class Accepted(msgspec.Struct, frozen=True):
    """The venue has the order."""

    venue_order_id: str
    already_processed: bool = False
    """Whether the venue answered that it had the order before this attempt."""
    reports: tuple[ExecutionReport, ...] = ()
    """The first reports on the order, where they came with the answer; `Venue.reports` returns them too."""
    accepted_at: datetime | None = None
    """When the venue took the order, by its own clock, where the answer shows it."""


class VenueRejected(msgspec.Struct, frozen=True):
    """A rejection that the venue's documentation calls final."""

    code: RejectCode
    detail: str | None = None
    """The venue's own words or code."""


class Unsent(msgspec.Struct, frozen=True):
    """Proven unsent: the connection was refused, or the venue throttled the request before processing it."""

    code: UnsentCode
    detail: str | None = None
    """For people."""
    retry_after: timedelta | None = None
    bytes_sent: bool = False
    """Whether bytes were written all the same: the venue answered that it did not process them (429)."""


class Ambiguous(msgspec.Struct, frozen=True):
    """Bytes were written, and no readable response arrived."""

    code: AmbiguousCode
    detail: str | None = None
    """For people."""
    address: str | None = None
    """The address that the bytes went to, for people."""


class VenueUnavailable(SwitchyardError):
    """The venue did not answer a query; that says nothing about its orders."""


SendOutcome = Accepted | VenueRejected | Unsent | Ambiguous


class VenueFill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution as the venue lists it, under the same id as in its report, so that it counts once.

    The fields with a default mean the same as in `ExecutionReport`.
    """

    exec_id: str
    qty: Decimal
    price: Decimal
    at: datetime
    fee: Decimal | None = None
    fee_currency: str | None = None
    exec_type: ExecType | None = None
    ref_exec_id: str | None = None


class VenueAmend(msgspec.Struct, frozen=True, kw_only=True):
    """An amend that the venue has carried out; an amount that it does not show is None."""

    client_order_id: VenueClientOrderId
    """The amend's own."""
    replaces: bool
    """Whether the order went on under this id from then on."""
    qty: Decimal | None = None
    price: Decimal | None = None
    stop_price: Decimal | None = None

    @property
    def amounts(self) -> Amounts:
        """The order's amounts after the amend."""
        return Amounts(qty=self.qty, price=self.price, stop_price=self.stop_price)


class VenueOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order as the venue lists it."""

    venue_client_order_id: VenueClientOrderId
    venue_order_id: str
    status: ReportStatus
    filled_qty: Decimal
    fills: tuple[VenueFill, ...] = ()
    """Every execution so far; if they add up to less than `filled_qty`, the difference raises an alarm."""
    qty: Decimal | None = None
    """The total quantity, where the venue shows it; another one than ours raises an alarm."""
    price: Decimal | None = None
    """The limit price, where the venue shows it."""
    stop_price: Decimal | None = None
    """Where the venue shows it."""
    symbol: str | None = None
    """The instrument by our name, where the venue shows it."""
    side: Side | None = None
    """Where the venue shows it."""
    accepted_at: datetime | None = None
    """When the venue took the order, by its own clock, where it shows it."""
    amends: tuple[VenueAmend, ...] = ()
    """The amends that the answer shows, the oldest first: each one that replaced the order that was asked for, or the
    last one in place. After a restore, those that are not in the database are recorded from here."""

    @property
    def amounts(self) -> Amounts:
        """The order's present amounts."""
        return Amounts(qty=self.qty, price=self.price, stop_price=self.stop_price)


class OrderToFind(msgspec.Struct, frozen=True, kw_only=True):
    """An order to look up by its client order id; venues differ in what else they need."""

    client_order_id: VenueClientOrderId
    symbol: str | None = None
    """None if nothing but the id is known."""
    side: Side | None = None
    venue_order_id: str | None = None
    account_id: AccountId | None = None
    attempts: int | None = None
    """How many attempts to send the message were begun, each with one copy at most; None: not known."""


def to_find(order: Order, client_id: VenueClientOrderId | None = None, *, attempts: int | None = None) -> OrderToFind:
    """The order by its present client order id, or by another one of its ids."""
    own_id = order.leg_client_order_id or order.venue_client_order_id
    return OrderToFind(
        client_order_id=client_id or own_id,
        symbol=order.symbol,
        side=order.side,
        venue_order_id=order.venue_order_id if client_id in (None, own_id) else None,
        account_id=order.account_id,
        attempts=attempts,
    )


class UnreadableReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report that the adapter cannot read; it may be a fill, so it is set aside and raises an alarm."""

    text: str
    """What the venue sent, cut to a bound and printable."""
    error: str


class ReportPage(msgspec.Struct, frozen=True):
    """Execution reports in the venue's order."""

    reports: Sequence[ExecutionReport]
    cursor: str | None
    """Where the next page begins, in the venue's own form; None: at the first report."""
    unreadable: Sequence[UnreadableReport] = ()
    """The reports of this page that are not in `reports`."""
    restarted: bool = False
    """Whether the venue's numbering started again, so that everything is read anew."""


class NeverReceived(msgspec.Struct, frozen=True, kw_only=True):
    """The venue has proven that it received no message with this id, and that none can arrive any more.

    This is about every copy that has left: an order is sent again after it, under the same id.
    """

    evidence: str
    """What proves it, such as the numbers of the session; stored with the order, for people."""


OnDeparture = Callable[[], None]


def ignore_departure() -> None:
    """The default `on_departure`: do nothing."""


class Venue(Protocol):
    """One execution venue.

    `submit`, `submit_many`, `amend` and `cancel` do not raise; they return outcomes. A query that gets no answer raises
    VenueUnavailable, because None means that the order is absent. An outcome describes one attempt: `Unsent` and
    `VenueRejected` on a resend say nothing about an earlier ambiguous attempt.
    """

    @property
    def name(self) -> VenueName:
        """The name in routes and settings."""

    @property
    def capabilities(self) -> Capabilities:
        """What the venue guarantees."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`.

        Calls `on_departure` once the request is on the wire, so that the next order may follow. An adapter that
        cannot detect this does not call it; the next order then waits for the outcome.
        """

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        """Send at most `Capabilities.batch_max` orders, in this order; returns one outcome per order, in this order.

        Each order has its own outcome: one may be rejected and the others accepted. Calls `on_departure` once all of
        them are on the wire. Adapters whose requests carry one order inherit it from `adapters.venues.one_by_one`.
        """

    async def cancel(self, order: Order) -> SendOutcome:
        """Request the cancel of an order, by the id that the venue knows it by now (`domain.orders.amends.current_id`).

        If an amend has replaced the order meanwhile, the order in its place is cancelled; or nothing is, and the
        outcome is `Unsent("REPLACED")`.
        """

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        """Send an amend under its own `client_order_id`; `Accepted` once the venue has carried it out.

        The venue must reject an amend whose `orig_client_order_id` is not the last one of the order, and must recognise
        one that it has carried out: a late or repeated copy then changes nothing.
        """

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        """Return the order, or None if the venue does not have it; raises VenueUnavailable.

        The id of an amend that was carried out finds its order. The id of an order that was replaced finds the order in
        its place, with all fills and the amends that led to it; if the venue does not show that one, it is unavailable.
        """

    def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that the venue may still fill, in pages; raises VenueUnavailable, also after some pages."""

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        """Return the reports after the cursor; waits briefly if there are none; raises VenueUnavailable.

        A page without reports means that there are none: an error is never an empty page.
        """

    async def probe(self) -> ProbeResult:
        """Ask the venue something harmless over the same hop as its lookups; raises VenueUnavailable."""


@runtime_checkable
class HasClock(Protocol):
    """A venue whose answers show its clock."""

    @property
    def clock_offset(self) -> timedelta | None:
        """How far the venue's clock is ahead of ours; None before an answer has shown it."""
        ...


@runtime_checkable
class MassCancel(Protocol):
    """A venue with `Capabilities.cancel_all`."""

    @property
    def name(self) -> VenueName:
        """The venue's name."""

    async def cancel_all(self) -> None:
        """Cancel every open order under this venue's credentials; raises VenueUnavailable.

        An acknowledgement proves nothing about a single order: its report or a lookup does.
        """


@runtime_checkable
class ProvesUnreceived(Protocol):
    """A venue with `Capabilities.sequence_proof`."""

    async def find_or_proof(self, order: OrderToFind) -> VenueOrder | NeverReceived | None:
        """Look an order up as `Venue.find` does; the venue may answer with a proof. Raises VenueUnavailable."""


@runtime_checkable
class CancelAllAfter(Protocol):
    """A venue with `Capabilities.cancel_all_after`: a dead man's switch."""

    @property
    def name(self) -> VenueName:
        """The venue's name."""

    async def cancel_all_after(self, seconds: int) -> None:
        """Have the venue cancel every open order under its credentials in this many seconds; 0: not at all.

        It replaces the time that was set before. Returns once the venue has acknowledged it; raises VenueUnavailable.
        """


STATEMENT_PAGE_MAX = 1_000


class StatementPage(msgspec.Struct, frozen=True):
    """Lines in the venue's order."""

    fills: Sequence[StatementFill]
    cursor: str | None
    """Where the next page begins, in the venue's own form; None: at the first line."""
    restarted: bool = False
    """Whether the venue's numbering started again."""


@runtime_checkable
class VenueStatement(Protocol):
    """A venue that can be asked for its statement; every method raises VenueUnavailable, and never guesses 'nothing'.

    The position of a symbol at the venue is the sum of its fills.
    """

    @property
    def name(self) -> VenueName:
        """The venue's name."""

    @property
    def capabilities(self) -> Capabilities:
        """What the venue guarantees; its execution ids are as unique as in its reports."""

    async def statement(self, after: str | None, limit: int) -> StatementPage:
        """Return the next executions, each once, at most STATEMENT_PAGE_MAX; an empty page is the end."""

    def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that the venue may still fill, in pages."""
