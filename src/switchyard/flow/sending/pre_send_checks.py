"""What is committed instead of an attempt if an order must not be sent. Decides only, and writes nothing.

A resend is an execution: deadline, kill switch and price collar are checked again before it, and for an order that
closes a position whether it still reduces it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal, Protocol, assert_never

from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import amend_of, is_stale
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.outbox import MayBeLost, OrderState, OutboxKey, OutboxRow, never_lost
from switchyard.domain.orders.reasons import SendCode, described
from switchyard.domain.risk.checks import Violation, order_collar
from switchyard.domain.risk.claims import is_reducing
from switchyard.domain.values import EXACT, ZERO, plain
from switchyard.flow.active_kills import ActiveKills
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import Due
from switchyard.ports.quotes import Quotes
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT, Capabilities, Venue


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


class Closes:
    """Adds to what another guard finds the closes that would do more than reduce their position."""

    def __init__(self, guard: Guard, journal: Journal) -> None:
        self._guard = guard
        self._journal = journal

    async def breaches(self, page: Sequence[Due]) -> Mapping[OutboxKey, Violation]:
        """The rows of the page that must not be sent now, each with its reason."""
        found = await self._guard.breaches(page)
        closes = [due for due in page if due.state.order.reduce_only and _is_judged(due)]
        if not closes:
            return found
        keys = {(due.state.order.account_id, due.state.order.symbol) for due in closes}
        held = await self._journal.load_positions(sorted(keys))
        positions = {key: position.qty for key, position in held.items()}
        gone = {}
        for due in closes:
            order = due.state.order
            position = positions.get((order.account_id, order.symbol), ZERO)
            if not is_reducing(position, ZERO, order.side, _qty_left(due)):
                detail = f"the position in {order.symbol} is {plain(position)} by now"
                gone[due.row.key] = Violation("NOT_REDUCING", detail)
        return {**found, **gone}


def _is_judged(due: Due) -> bool:
    """Whether the row may bring the close to the market; an amend of its quantity alone can only make it smaller."""
    match due.row.kind:
        case "new":
            return True
        case "amend":
            return amend_of(due.row).price != due.state.order.price
        case "cancel":
            return False
        case unreachable:
            assert_never(unreachable)


def _qty_left(due: Due) -> Decimal:
    """What the close may still fill once the row is carried out."""
    qty = amend_of(due.row).qty if due.row.kind == "amend" else due.state.order.qty
    return EXACT.subtract(qty, due.state.order.filled_qty)


# The share of `dedupe_ttl` that is not used, and its minimum: clocks of venue and sender run at different speeds, and
# venues round the time.
TTL_MARGIN = 0.1
TTL_MARGIN_MIN = timedelta(seconds=1)
# Rows whose first send is remembered; of the others a resend needs a proof of absence.
FIRST_SENDS_MAX = 10_000


def ttl_for_resends(capabilities: Capabilities) -> timedelta:
    """How long after the first attempt began a resend may begin, to arrive while the venue remembers the id."""
    ttl = capabilities.dedupe_ttl
    if ttl is None:
        return timedelta()
    margin = max(ttl * TTL_MARGIN, TTL_MARGIN_MIN)
    # A resend that begins now may wait for its turn, take the whole send limit and be held by a proxy.
    return ttl - margin - TURN_LIMIT - SEND_LIMIT - capabilities.hop_hold


class FirstSends:
    """When this process first sent each row that is not settled, on the monotonic clock.

    A venue with a time to live remembers a client order id from the first copy that arrived, which is not before the
    first attempt. Another process, and this one after a restart, knows no such time and must prove absence.
    """

    def __init__(self, venues: Mapping[VenueName, Venue], clock: Clock) -> None:
        self._venues = venues
        self._clock = clock
        self._begun_at: dict[OutboxKey, float] = {}

    def begin(self, row: OutboxRow, begun_at: float, *, in_doubt: bool) -> None:
        """An attempt begins; `in_doubt` if an earlier copy may be at the venue, whose time then counts."""
        if in_doubt or self._venues[row.venue].capabilities.dedupe != "ttl":
            return
        if row.key in self._begun_at or len(self._begun_at) < FIRST_SENDS_MAX:
            self._begun_at[row.key] = begun_at

    def settle(self, row: OutboxRow) -> None:
        """The row will not be resent without a proof of absence."""
        if self._begun_at:
            self._begun_at.pop(row.key, None)

    def may_resend(self, row: OutboxRow) -> bool:
        """Whether the venue still recognises the client order id if the order is sent again now."""
        capabilities = self._venues[row.venue].capabilities
        match capabilities.dedupe:
            case "permanent":
                return True
            case "ttl":
                begun_at = self._begun_at.get(row.key)
                if begun_at is None:
                    return False
                elapsed = self._clock.monotonic() - begun_at
                return elapsed < ttl_for_resends(capabilities).total_seconds()
            case "while_open" | "none":
                return False
            case unreachable:
                assert_never(unreachable)


# The statuses in which an order's own row may be sent: no evidence shows that the venue has the order.
SENDABLE = ("ACCEPTED", "UNKNOWN", "CANCEL_REQUESTED")


class PreSendChecks:
    """Decides whether a claimed order may be sent, and what becomes of it otherwise."""

    def __init__(
        self,
        first_sends: FirstSends,
        kills: ActiveKills,
        retries: decisions.RetryLimits,
        may_be_lost: MayBeLost = never_lost,
    ) -> None:
        self._may_be_lost = may_be_lost
        self._first_sends = first_sends
        self._kills = kills
        self._retries = retries

    def of_message(
        self, state: OrderState, row: OutboxRow, breaches: Mapping[OutboxKey, Violation], now: datetime
    ) -> Change | None:
        """The change to commit where the message must not be sent; none where it may be sent."""
        match row.kind:
            case "new":
                change = self.of_sending(state, row, breaches, now)
            case "amend":
                change = self.of_amending(state, row, breaches, now)
            case "cancel":
                return None
            case unreachable:
                assert_never(unreachable)
        return None if change is None else decisions.unless_lost(change, state, row, self._may_be_lost, now)

    def of_amending(
        self, state: OrderState, row: OutboxRow, breaches: Mapping[OutboxKey, Violation], now: datetime
    ) -> Change | None:
        """The change to commit where the amend must not be sent; none where it may be sent."""
        order, breach = state.order, breaches.get(row.key)
        if is_final(order.status):
            return decisions.record_amend_refused(state, row, "ORDER_FINAL", now)
        if order.status == "CANCEL_REQUESTED":
            return decisions.record_amend_refused(state, row, "CANCEL_REQUESTED", now)
        kill = self._kills.covering(order)
        if kill is not None:
            return decisions.record_amend_refused(state, row, "KILL_SWITCH", now, detail=kill.kill_id)
        if is_stale(state, row):
            return decisions.record_amend_refused(state, row, "CONFLICT", now, detail="the order was amended since")
        if amend_of(row).qty <= order.filled_qty:
            return decisions.record_amend_refused(state, row, "QTY_FILLED", now)
        if breach is not None and breach.reason in ("COLLAR", "NOT_REDUCING"):
            return decisions.record_amend_refused(state, row, _code(breach), now, detail=breach.detail)
        return None

    def of_sending(
        self, state: OrderState, row: OutboxRow, breaches: Mapping[OutboxKey, Violation], now: datetime
    ) -> Change | None:
        """The change to commit where the order must not be sent; none where it may be sent.

        `breaches`: the orders to be sent again whose price is outside its collar now, and closes without a position.
        """
        order = state.order
        if order.status not in SENDABLE:
            # A report has shown that the venue has the order.
            return decisions.record_sent(state, row, order.venue_order_id, now)
        kill = self._kills.covering(order)
        if kill is not None:
            if order.status == "ACCEPTED":
                return decisions.end_killed(state, kill, now)
            return self._ask_only(state, row, "KILL_SWITCH", now)
        is_late = decisions.is_past_deadline(order, now)
        breach = breaches.get(row.key)
        if order.status == "UNKNOWN":
            if is_late or not self._first_sends.may_resend(row):
                return self._ask_only(state, row, "TOO_LATE_TO_RESEND", now)
            return None if breach is None else self._ask_only(state, row, _code(breach), now)
        if is_late:
            return _expired(state, row, now)
        if self._retries.is_too_old(order, row, now):
            return decisions.end_too_old(state, row, self._retries, now)
        if breach is not None and order.status == "ACCEPTED":
            return decisions.end_unsent(state, _code(breach), breach.detail, now)
        return None

    def _ask_only(self, state: OrderState, row: OutboxRow, code: SendCode, now: datetime) -> Change:
        """An order in doubt that is not sent again: only the venue can tell."""
        self._first_sends.settle(row)
        return decisions.record_doubt(state, row, row.last_error or code, None, now, detail=row.error_detail)


def _code(breach: Violation) -> Literal["COLLAR", "NOT_REDUCING"]:
    return "NOT_REDUCING" if breach.reason == "NOT_REDUCING" else "COLLAR"


def _expired(state: OrderState, row: OutboxRow, now: datetime) -> Change:
    if row.last_error == "ABSENT_AT_VENUE":
        return decisions.record_expired(state, row, "ABSENT_AT_VENUE", now)
    detail = None if row.last_error is None else described(row.last_error, row.error_detail)
    return decisions.record_expired(state, row, "BROKER_DOWN" if row.attempt else "BROKER_TIMEOUT", now, detail=detail)
