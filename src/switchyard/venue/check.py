"""`venues check`: does a venue keep what its adapter declares? Tried with a few small orders that a person allowed.

A trial sends orders through the bridge, as a process does, and compares what the venue shows with what is declared. If
something could not be tried, it says so, and never 'kept'. The orders have the tag of no installation, so no running
process takes them for its own. Orders that are still open at the end are canceled.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, narrowed, to_venue, venue_client_order_id
from switchyard.domain.orders.amends import Amend, current_id
from switchyard.domain.orders.order import Order, TimeInForce
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ZERO, plain
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    to_find,
)
from switchyard.venue.bridge import Bridge

# A venue may show an order, or report on it, somewhat later than it took it.
SETTLE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.5
LATE: Final = timedelta(seconds=1)
PAGE: Final = 500
# More history than this is not read through to its end.
PAGES_MAX: Final = 200
# A repeated order may be open several times, and each cancel ends one of them.
CLEAN_UPS_MAX: Final = 5
_IS_OPEN: Final = ("WORKING", "PARTIALLY_FILLED")

Verdict = Literal["kept", "broken", "not tried"]


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """What a person allowed: every order of the check buys this much, at one of these prices."""

    account: AccountId
    symbol: str
    qty: Decimal
    resting: Decimal
    """Far below the market, so that the order stays open."""
    marketable: Decimal | None = None
    """Above the market, so that it fills; None: nothing that needs a fill is tried."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one claim of the descriptor."""

    claim: str
    verdict: Verdict
    text: str


class _Broken(Exception):
    """The venue does not keep a claim."""


class _NotTried(Exception):
    """A claim could not be tried."""


class Trial(msgspec.Struct, frozen=True):
    """One claim, and how it is tried."""

    claim: str
    run: "Callable[[VenueCheck], Awaitable[str]]"
    resting: int = 0
    """How many orders it sends at the resting price, repeated ones included."""
    marketable: int = 0
    """The same at the marketable price; such a trial is left out if there is none."""


class VenueCheck:
    """Tries the claims one after the other."""

    def __init__(
        self, venue: Bridge, allowed: Allowed, *, tag: str, clock: Clock, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._venue = venue
        self._allowed = allowed
        self._tag = tag
        self._clock = clock
        self._sleep = sleep
        self._sent: dict[VenueClientOrderId, Order] = {}
        self._doubts: dict[VenueClientOrderId, Order] = {}
        self._count = 0
        self._left = {price: count * allowed.qty for price, count in self.plan()}
        self._resting: Order | None = None
        self._ended: Order | None = None
        self._reports_end: str | None = None
        self._is_at_end = False

    def trials(self) -> list[Trial]:
        """Those that the declared capabilities, and the allowed prices, call for."""
        declared = self._venue.capabilities
        finds = declared.lookup != "none"
        wanted = [
            (True, Trial("an answer", VenueCheck._answers)),
            (True, Trial("reports", VenueCheck._reads_to_the_end)),
            (finds, Trial("lookup: absent", VenueCheck._knows_what_it_lacks)),
            (True, Trial("a resting order", VenueCheck._rests, resting=1)),
            (finds, Trial("lookup: open", VenueCheck._finds_open)),
            (finds, Trial("open orders", VenueCheck._lists_open)),
            (declared.dedupe != "none", Trial("dedupe: while open", VenueCheck._knows_a_repeat, resting=1)),
            (declared.amend != "none", Trial("amend", VenueCheck._amends, resting=1)),
            (True, Trial("cancel", VenueCheck._cancels)),
            (declared.lookup == "all", Trial("lookup: closed", VenueCheck._finds_closed)),
            (declared.dedupe in ("ttl", "permanent"), Trial("dedupe: closed", VenueCheck._knows_an_ended, resting=1)),
            (declared.request_expiry, Trial("request_expiry", VenueCheck._expires, resting=1)),
            (True, Trial("execution_ids", VenueCheck._fills, marketable=2)),
        ]
        return [trial for is_declared, trial in wanted if is_declared]

    def plan(self) -> list[tuple[Decimal, int]]:
        """How many orders are sent at most at each price; also at worst, if the venue executes all of them."""
        trials, allowed = self.trials(), self._allowed
        plan = [(allowed.resting, sum(trial.resting for trial in trials))]
        if allowed.marketable is not None:
            plan.append((allowed.marketable, sum(trial.marketable for trial in trials)))
        return plan

    async def run(self) -> AsyncIterator[Finding]:
        """Try one claim after the other; `clean_up` must follow, whatever happens."""
        for trial in self.trials():
            yield await self._tried(trial)

    async def clean_up(self) -> Finding | None:
        """Cancel what is open; names the orders that may still be, or may still appear."""
        left = dict.fromkeys([*await self._cancel_all(), *self._unclear()])
        if not left:
            return None
        return Finding(claim="cleaning up", verdict="broken", text=f"cancel these yourself: {', '.join(left)}")

    def _unclear(self) -> list[str]:
        """The orders whose send had an unclear outcome and that nothing has shown since: they may still appear."""
        return [to_venue(current_id(order), self._venue.descriptor.id_form) for order in self._doubts.values()]

    async def _tried(self, trial: Trial) -> Finding:
        verdict: Verdict = "not tried"
        if trial.marketable and self._allowed.marketable is None:
            return Finding(claim=trial.claim, verdict=verdict, text="it needs a price at which an order fills")
        try:
            verdict, text = "kept", await trial.run(self)
        except _Broken as broken:
            verdict, text = "broken", str(broken)
        except (_NotTried, VenueUnavailable) as error:
            text = str(error)
        return Finding(claim=trial.claim, verdict=verdict, text=text)

    # The claims.

    async def _answers(self) -> str:
        if await self._venue.probe() != "answered":
            raise _NotTried("the venue says that it is busy")
        offset = self._venue.clock_offset
        return "it answers" if offset is None else f"it answers; its clock is {offset.total_seconds():+.1f} s from ours"

    async def _reads_to_the_end(self) -> str:
        for _ in range(PAGES_MAX):
            page = await self._venue.reports(self._reports_end, PAGE)
            if not page.reports and not page.unreadable:
                self._is_at_end = True
                return "they are read to their end"
            if page.cursor == self._reports_end:
                raise _Broken("a page with reports does not move the cursor")
            self._reports_end = page.cursor
        raise _NotTried(f"there are more than {PAGES_MAX} pages")

    async def _knows_what_it_lacks(self) -> str:
        found = await self._venue.find(to_find(self._order(self._allowed.resting)))
        if found is not None:
            raise _Broken(f"an order that was never sent is {found.status}")
        return "an order that was never sent is unknown"

    async def _rests(self) -> str:
        order = self._order(self._allowed.resting)
        outcome = await self._submit(order)
        if not isinstance(outcome, Accepted):
            raise _NotTried(f"the order was not accepted: {_said(outcome)}")
        self._resting = replace(order, venue_order_id=outcome.venue_order_id)
        return f"accepted as {outcome.venue_order_id}"

    async def _finds_open(self) -> str:
        order = self._rested()
        found = await self._until_found(order, _IS_OPEN)
        wanted = (("qty", order.qty), ("price", order.price), ("side", order.side), ("symbol", order.symbol))
        for name, ours in wanted:
            theirs = getattr(found, name)
            if theirs not in (None, ours):
                raise _Broken(f"its {name} is {theirs}, not {ours}")
        if found.venue_order_id != order.venue_order_id:
            raise _Broken(f"it was accepted as {order.venue_order_id}, and is found as {found.venue_order_id}")
        return "it is found with its amounts"

    async def _lists_open(self) -> str:
        listed = await self._open_ids()
        count = listed.count(self._rested().venue_client_order_id)
        if count != 1:
            raise _Broken(f"the order is listed {count} times among {len(listed)}")
        return f"it is one of {len(listed)}"

    async def _knows_a_repeat(self) -> str:
        return await self._repeated(self._rested(), open_max=1)

    async def _amends(self) -> str:
        order, declared = self._rested(), self._venue.capabilities
        amend = Amend(
            client_order_id=self._new_id(),
            orig_client_order_id=order.venue_client_order_id,
            qty=2 * order.qty,
            price=order.price,
            replaces=declared.amend == "cancel_replace",
        )
        self._spend(order)
        outcome = await self._venue.amend(order, amend)
        if not isinstance(outcome, Accepted):
            raise _Broken(f"an amend led to: {_said(outcome)}")
        leg = amend.client_order_id if amend.replaces else None
        self._resting = amended = replace(
            order, qty=2 * order.qty, venue_order_id=outcome.venue_order_id, leg_client_order_id=leg
        )
        self._sent[order.venue_client_order_id] = amended
        if declared.lookup != "none":
            found = await self._venue.find(to_find(amended, amend.client_order_id))
            if found is None or found.qty not in (None, amended.qty):
                raise _Broken(f"a lookup by the amend's id shows {found and found.qty}")
        return "it was carried out" + (", under its own id" if leg else " in place")

    async def _cancels(self) -> str:
        order = self._rested()
        outcome = await self._venue.cancel(order)
        if not isinstance(outcome, Accepted):
            raise _Broken(f"the cancel of an open order led to: {_said(outcome)}")
        if self._venue.capabilities.lookup != "none" and not await self._until(
            lambda: self._is_not_listed(order.leg_client_order_id or order.venue_client_order_id)
        ):
            raise _Broken(f"it is still listed as open after {SETTLE_SECONDS:.0f} s")
        self._ended = order
        return "the order has ended"

    async def _finds_closed(self) -> str:
        found = await self._until_found(self._canceled(), ("CANCELED",))
        return f"the canceled order is found, with {plain(found.filled_qty)} filled"

    async def _knows_an_ended(self) -> str:
        return await self._repeated(self._canceled(), open_max=0)

    async def _expires(self) -> str:
        window = self._venue.capabilities.acceptance_window
        assert window is not None, "check_descriptor demands it"
        order = self._order(self._allowed.resting, attempted_at=self._clock.now() - window - LATE)
        outcome = await self._submit(order)
        found = None
        if self._venue.capabilities.lookup != "none":
            found = await self._venue.find(to_find(order))
        if isinstance(outcome, Accepted) or found is not None:
            raise _Broken(f"a request that is {_seconds(window + LATE)} old was carried out")
        is_expired = isinstance(outcome, Ambiguous) and outcome.code == "REQUEST_EXPIRED"
        if not is_expired and not isinstance(outcome, VenueRejected):
            raise _NotTried(f"it led to: {_said(outcome)}")
        return f"a request that is {_seconds(window + LATE)} old led to: {_said(outcome)}"

    async def _fills(self) -> str:
        assert self._allowed.marketable is not None, "the trial is left out"
        orders = [self._order(self._allowed.marketable) for _ in range(2)]
        for order in orders:
            outcome = await self._submit(order)
            if not isinstance(outcome, Accepted):
                raise _NotTried(f"the order was not accepted: {_said(outcome)}")
        if not self._is_at_end:
            raise _NotTried("the reports were not read to their end")
        fills: list[ExecutionReport] = []

        async def are_filled() -> bool:
            fills[:] = [report for report in await self._new_reports() if report.last_qty]
            ids = [order.venue_client_order_id for order in orders]
            return sum((one.last_qty for one in fills if one.venue_client_order_id in ids), ZERO) == 2 * orders[0].qty

        if not await self._until(are_filled):
            raise _Broken(f"after {SETTLE_SECONDS:.0f} s, the reports do not show both fills: {len(fills)} executions")
        scope = self._venue.capabilities.execution_ids
        ids = [(one.venue_client_order_id if scope == "order" else "", one.exec_id) for one in fills]
        if len(set(ids)) < len(ids):
            raise _Broken(f"an execution id repeats: {sorted(one for _, one in ids)}")
        again = [report for report in await self._new_reports() if report.last_qty]
        if again[: len(fills)] != fills:
            raise _Broken("reading on at the same cursor shows other reports")
        # Each symbol was traded alone, so a scope of `venue` is not proven beyond it.
        beyond = "; in another symbol they were not tried" if scope == "venue" else ""
        return f"{len(fills)} executions have ids of their own{beyond}"

    # Orders.

    def _new_id(self) -> VenueClientOrderId:
        self._count += 1
        key = f"{self._clock.now().isoformat()}-{self._count}"
        account, form = self._allowed.account, self._venue.descriptor.id_form
        return narrowed(venue_client_order_id(self._tag, account, "check", key, 1, OrderId(f"ord_{key}")), form)

    def _order(self, price: Decimal, attempted_at: datetime | None = None) -> Order:
        client_id, now = self._new_id(), attempted_at or self._clock.now()
        return Order(
            order_id=OrderId(f"ord_{client_id}"),
            account_id=self._allowed.account,
            client_order_id=None,
            venue_client_order_id=client_id,
            symbol=self._allowed.symbol,
            side="BUY",
            type="LIMIT",
            time_in_force=self._time_in_force(rests=price == self._allowed.resting),
            qty=self._allowed.qty,
            price=price,
            stop_price=None,
            status="SENDING",
            filled_qty=ZERO,
            filled_notional=ZERO,
            venue=self._venue.name,
            venue_order_id=None,
            reason=None,
            strategy=None,
            tags=(),
            accepted_at=now,
            updated_at=now,
            version=1,
        )

    def _time_in_force(self, *, rests: bool) -> TimeInForce:
        known = self._venue.capabilities.kinds.times_in_force
        wanted: Sequence[TimeInForce] = ("GTC", "DAY") if rests else ("IOC", "GTC", "DAY")
        return next((each for each in wanted if each in known), wanted[0])

    def _spend(self, order: Order) -> None:
        """Count a request that may be executed; raises before one that was not allowed is sent."""
        assert order.price is not None, "every order of the check has a limit"
        left = self._left[order.price] - self._allowed.qty
        assert left >= 0, "a trial sends more than it has said"
        self._left[order.price] = left

    async def _submit(self, order: Order) -> SendOutcome:
        self._spend(order)
        known = self._sent.setdefault(order.venue_client_order_id, order)
        outcome = await self._venue.submit(order)
        if isinstance(outcome, Unsent) and known is order:
            del self._sent[order.venue_client_order_id]
        if isinstance(outcome, Ambiguous) and known is order and outcome.code != "REQUEST_EXPIRED":
            self._doubts[order.venue_client_order_id] = order
        return outcome

    async def _repeated(self, order: Order, *, open_max: int) -> str:
        """What the venue says to a copy of an order; raises if it is taken for a new one."""
        copy = replace(order, qty=self._allowed.qty, leg_client_order_id=None, updated_at=self._clock.now())
        outcome = await self._submit(copy)
        if isinstance(outcome, Unsent) or (isinstance(outcome, Ambiguous) and outcome.code != "CONFLICT"):
            raise _NotTried(f"the repeated order led to: {_said(outcome)}")
        if isinstance(outcome, Accepted) and outcome.venue_order_id != order.venue_order_id:
            raise _Broken(f"the repeated order was accepted as another one: {outcome.venue_order_id}")
        if self._venue.capabilities.lookup != "none":
            count = (await self._open_ids()).count(order.venue_client_order_id)
            if count > open_max:
                raise _Broken(f"{count} open orders have the repeated id")
        return f"the repeated order led to: {_said(outcome)}"

    def _rested(self) -> Order:
        if self._resting is None:
            raise _NotTried("no order rests")
        return self._resting

    def _canceled(self) -> Order:
        if self._ended is None:
            raise _NotTried("no order was canceled")
        return self._ended

    # What the venue shows.

    async def _open_ids(self) -> list[VenueClientOrderId]:
        return [found.venue_client_order_id async for page in self._venue.open_orders() for found in page]

    async def _is_not_listed(self, client_id: VenueClientOrderId) -> bool:
        return client_id not in await self._open_ids()

    async def _new_reports(self) -> list[ExecutionReport]:
        reports: list[ExecutionReport] = []
        after = self._reports_end
        for _ in range(PAGES_MAX):
            page = await self._venue.reports(after, PAGE)
            if not page.reports and not page.unreadable:
                break
            reports += page.reports
            after = page.cursor
        return [one for one in reports if one.venue_client_order_id in self._sent]

    async def _until_found(self, order: Order, statuses: Sequence[str]) -> VenueOrder:
        """The order, once a lookup shows it in one of these states; raises if it does not."""
        seen: list[VenueOrder | None] = [None]

        async def is_shown() -> bool:
            seen[0] = await self._venue.find(to_find(order))
            return seen[0] is not None and seen[0].status in statuses

        if not await self._until(is_shown):
            state = "not found" if seen[0] is None else seen[0].status
            raise _Broken(f"after {SETTLE_SECONDS:.0f} s the order is {state}")
        assert seen[0] is not None
        return seen[0]

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> bool:
        deadline = self._clock.monotonic() + SETTLE_SECONDS
        while not await condition():
            if self._clock.monotonic() >= deadline:
                return False
            await self._sleep(POLL_SECONDS)
        return True

    async def _cancel_all(self) -> list[str]:
        """Cancel what may be open; returns the ids, as the venue shows them, of orders that may still be."""
        open_ids = list(self._sent)
        try:
            for _ in range(CLEAN_UPS_MAX):
                if self._venue.capabilities.lookup != "none":
                    listed = await self._open_ids()
                    open_ids = [one for one, order in self._sent.items() if current_id(order) in listed]
                outcomes = [await self._venue.cancel(self._sent[one]) for one in open_ids]
                for one, outcome in zip(open_ids, outcomes, strict=True):
                    if isinstance(outcome, Accepted):
                        self._doubts.pop(one, None)
                if self._venue.capabilities.lookup == "none":
                    unsure = zip(open_ids, outcomes, strict=True)
                    open_ids = [one for one, outcome in unsure if isinstance(outcome, Unsent | Ambiguous)]
                    break
                if not open_ids:
                    break
        except VenueUnavailable:
            pass  # those that were open when it last answered
        return [to_venue(current_id(self._sent[one]), self._venue.descriptor.id_form) for one in open_ids]


def _said(outcome: SendOutcome) -> str:
    match outcome:
        case Accepted(venue_order_id=venue_id, already_processed=already):
            return f"{'known' if already else 'accepted'} as {venue_id}"
        case VenueRejected(code=code, detail=detail):
            return f"rejected, {code}{_quoted(detail)}"
        case Unsent(code=code, detail=detail):
            return f"not processed, {code}{_quoted(detail)}"
        case Ambiguous(code=code, detail=detail):
            return f"in doubt, {code}{_quoted(detail)}"


def _quoted(detail: str | None) -> str:
    return "" if detail is None else f" ({detail})"


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():g} s"
