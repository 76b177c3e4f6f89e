"""The common path from a request to its order, for `/orders`, derived keys and `/do/order`.

Parse, check against the catalogue, look in the cache, route, judge the risk, write or find, count. Reads the cache, the
key store and rejected orders; writes through `OrderWriter`. The desks decide what differs between the operations: their
`KeyRules` and their answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from switchyard.domain.closing import CloseRequest, close_request, closing_order
from switchyard.domain.errors import (
    IdempotencyConflict,
    NotFound,
    PositionClosing,
    PositionMoved,
    QueueDelayed,
    RiskRejected,
)
from switchyard.domain.fields import converted, require_numbers
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.orders import OrderRequest, checked
from switchyard.domain.risk.checks import CheckResult
from switchyard.domain.risk.dry_run import DryRun, dry_run_of
from switchyard.domain.risk.killed import killed
from switchyard.domain.risk.reasons import Violation, violation_of
from switchyard.domain.risk.subject import Subject
from switchyard.domain.routing import Destination
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.intake.duplicates import DuplicateWatch
from switchyard.flow.intake.key_cache import KeyCache
from switchyard.flow.intake.writer import Intent, OrderWriter, Placement
from switchyard.flow.risk.contents import RecentContents
from switchyard.flow.risk.order_rate import OrderRate
from switchyard.flow.risk.pre_trade import PreTradeRisk
from switchyard.flow.risk.room import Room, Rooms
from switchyard.flow.routing.route import Routes
from switchyard.flow.routing.window import AdmissionWindow
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.keys import KeyStore

NOTHING_TO_CLOSE = (NotFound, PositionClosing, PositionMoved)
"""Why no order was placed or stored for a request to close a position."""
_AMOUNTS = ("qty", "price", "stopPrice")


class RoutedOrder(msgspec.Struct, frozen=True):
    """A checked order and the venue that it goes to."""

    order: OrderRequest
    destination: Destination
    closes: Literal["part", "whole"] | None = None
    """How much of a position the order has to close; none for an order that need not reduce anything."""


Write = Callable[[Violation | None], Awaitable[Placement]]
"""Writes an order, rejected if it has a violation."""

Prepare = Callable[[], Awaitable[RoutedOrder]]
"""Checks and routes a new order; called only where the intent may need one."""


class KeyRules(Protocol):
    """How one operation treats its keys."""

    def may_answer_from_cache(self, intent: Intent, cached: CacheEntry) -> bool:
        """Whether this cache entry answers the request without a look in the key store."""
        ...

    async def may_reuse_key(self, intent: Intent, entry: KeyEntry) -> bool:
        """Whether the key may start a new generation, with a new order, although `entry` holds it."""
        ...


class OrderIntake:
    """Turns requests into orders; an intent gets one order however often its request is repeated."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        routes: Routes,
        risk: PreTradeRisk,
        rooms: Rooms,
        rate: OrderRate,
        contents: RecentContents,
        kills: ActiveKills,
        window: AdmissionWindow,
        writer: OrderWriter,
        journal: Journal,
        keys: KeyStore,
        key_cache: KeyCache,
        duplicates: DuplicateWatch,
        clock: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._routes = routes
        self._risk = risk
        self._rooms = rooms
        self._rate = rate
        self._contents = contents
        self._kills = kills
        self._window = window
        self._writer = writer
        self._journal = journal
        self._keys = keys
        self._key_cache = key_cache
        self._duplicates = duplicates
        self._clock = clock

    def checked_order(self, body: Mapping[str, Any]) -> OrderRequest:
        """Parse a body of `POST /orders` and check it against the catalogue."""
        return checked(order_request(body), self._catalogue)

    async def routed(self, order: OrderRequest) -> RoutedOrder:
        """Route a checked order."""
        return RoutedOrder(order, self._routes.route_for(order))

    def checked_close(self, account: AccountId, symbol: str, body: Mapping[str, Any]) -> CloseRequest:
        """Parse a body of `POST /positions/{symbol}/close` and check it against the catalogue."""
        return close_request(account, symbol, body, self._catalogue)

    async def routed_close(self, account: AccountId, request: CloseRequest, *, exactly: bool = True) -> RoutedOrder:
        """Decide the order that closes the position and route it; its commit checks that the position still fits.

        Without `exactly` a whole close need not fit a position that has grown since.
        """
        here = await self._rooms.exposure_of(account, request.order.symbol)
        order = checked(closing_order(request, here), self._catalogue)
        is_whole = exactly and request.qty is None
        return RoutedOrder(order, self._routes.route_for(order), "whole" if is_whole else "part")

    async def place(self, account: AccountId, prepare: Prepare) -> Placement:
        """Place an order without a key, or store it as rejected; each call stores a new one."""
        exceeded = await self._rate.take(account)
        if exceeded is not None:
            raise self._unstored(account, exceeded)
        try:
            return await self._place(account, await prepare())
        except NOTHING_TO_CLOSE:
            await self._rate.put_back(account)
            raise

    async def place_once(
        self, intent: Intent, prepare: Prepare, rules: KeyRules, *, lookup_first: bool = False
    ) -> Placement:
        """Return the intent's order; place it if there is none.

        Without `lookup_first` a request that misses the cache goes straight to the commit, which finds an existing
        key too. That is the cheapest way for new orders. With it, the key store is asked before `prepare` is called.
        Raises IdempotencyConflict where the key belongs to another request, and where a new order is needed,
        QueueDelayed if its venue's queue is too slow and RiskRejected if the account is over its rate.
        """
        cached = await self._key_cache.find(intent)
        if cached is not None and rules.may_answer_from_cache(intent, cached):
            self._duplicates.count_duplicate(intent.account_id, intent.key, cached.order_id)
            return Placement(cached.order_id, replayed=True, cached=cached)
        placement = await self._find(intent, rules) if lookup_first else None
        if placement is None:
            placement = await self._write_or_find(intent, prepare, rules)
        assert placement.entry is not None, "a placement that is not from the cache has its key's row"
        if placement.entry.request_digest != intent.digest:
            raise IdempotencyConflict(intent.key)
        if placement.violation is None:
            self._duplicates.count(placement)
        else:
            self._risk.note_rejection(intent.account_id, placement.order_id, placement.violation)
        return placement

    async def dry_run(self, account: AccountId, order: OrderRequest) -> DryRun:
        """Return what every check says about the order; stores nothing and takes no token."""
        subject = self._subject(account, await self.routed(order))
        # For the dry run only: of a real order the commit itself decides whether a kill covers it.
        kill = await self._kills.covering_new(account, order.strategy, subject.venue, order.symbol)
        results = [
            CheckResult("KILL_SWITCH", None if kill is None else killed(kill)),
            *await self._rate.checks(account),
            *await self._rooms.waived(subject, self._risk.checks(subject)),
            *await self._rooms.checks(subject, self._clock.now()),
            *await self._contents.checks(account, order),
        ]
        return dry_run_of(subject, results)

    async def rejection(self, placement: Placement) -> RiskRejected | None:
        """Return the error for an order that risk rejected, in this request or in the one that it repeats."""
        violation = placement.violation
        # The commit that rejects an order also marks its key, so only failed orders have to be read.
        if placement.replayed and placement.entry is not None and placement.entry.status == "failed":
            violation = violation_of((await self._journal.load([placement.order_id]))[placement.order_id].order)
        if violation is None:
            return None
        return RiskRejected(
            violation.reason,
            violation.detail,
            order_id=placement.order_id,
            retry_after=violation.retry_after,
            replayed=placement.replayed,
        )

    async def _place(self, account: AccountId, routed: RoutedOrder) -> Placement:
        order, destination = routed.order, routed.destination
        room = await self._room(account, routed)

        def write(violation: Violation | None) -> Awaitable[Placement]:
            return self._writer.place(account, order, destination, room.rejected(violation))

        if room.violation is not None:
            placement = await write(None)
        else:
            await self._window.enter(destination.venue, account, order.time_in_force)
            try:
                placement = await self._claimed(account, order, "", write)
            finally:
                self._window.leave(destination.venue, account)
        if placement.violation is None:
            self._duplicates.count_new_order()
        else:
            self._risk.note_rejection(account, placement.order_id, placement.violation)
        return placement

    async def _room(self, account: AccountId, routed: RoutedOrder) -> Room:
        """Judge the order, and return what it claims or why it is rejected."""
        subject = self._subject(account, routed)
        if routed.closes is not None:
            return self._rooms.closing_room(subject, self._risk.judge(subject), whole=routed.closes == "whole")
        return await self._rooms.room(subject, self._risk.judge(subject))

    def _subject(self, account: AccountId, routed: RoutedOrder) -> Subject:
        return Subject(
            account_id=account,
            order=routed.order,
            instrument=self._catalogue.find(routed.order.symbol),
            venue=routed.destination.venue,
            quote=routed.destination.quote,
        )

    def _unstored(self, account: AccountId, violation: Violation) -> RiskRejected:
        """Return the error for an order of which nothing is stored."""
        self._risk.note_rejection(account, None, violation)
        return RiskRejected(violation.reason, violation.detail, retry_after=violation.retry_after)

    async def _claimed(self, account: AccountId, order: OrderRequest, owner: str, write: Write) -> Placement:
        """Write the order unless the account placed an equal one within the duplicate window."""
        if not self._contents.is_on:
            return await write(None)
        async with self._contents.claimed(account, order, owner) as claim:
            placement = await write(claim.violation)
            claim.is_used = not placement.replayed and placement.violation is None
        return placement

    async def _write_or_find(self, intent: Intent, prepare: Prepare, rules: KeyRules) -> Placement:
        exceeded = await self._rate.take(intent.account_id)
        if exceeded is not None:
            placement = await self._find(intent, rules)  # a repeat needs no token
            if placement is None:
                raise self._unstored(intent.account_id, exceeded)
            return placement
        try:
            placement = await self._judge_and_write(intent, prepare, rules)
        except NOTHING_TO_CLOSE:
            await self._rate.put_back(intent.account_id)
            raise
        if placement.replayed:
            await self._rate.put_back(intent.account_id)
        return placement

    async def _judge_and_write(self, intent: Intent, prepare: Prepare, rules: KeyRules) -> Placement:
        routed = await prepare()
        order, venue = routed.order, routed.destination.venue
        room = await self._room(intent.account_id, routed)
        if room.violation is not None:  # it does not wait for the others, because it is never sent
            return await self._writer.place_once(intent, order, routed.destination, rules.may_reuse_key, room)
        if not self._window.try_enter(venue, intent.account_id, order.time_in_force):
            try:
                await self._window.enter(venue, intent.account_id, order.time_in_force)
            except QueueDelayed:
                # A repeat needs no room, so it is answered even while new orders are rejected.
                placement = await self._find(intent, rules)
                if placement is None:
                    raise
                return placement
            # An order's send deadline counts from its acceptance.
            intent = msgspec.structs.replace(intent, created_at=self._clock.now())

        def write(violation: Violation | None) -> Awaitable[Placement]:
            rejected = room.rejected(violation)
            return self._writer.place_once(intent, order, routed.destination, rules.may_reuse_key, rejected)

        try:
            return await self._claimed(intent.account_id, order, f"{intent.operation}:{intent.key}", write)
        finally:
            self._window.leave(venue, intent.account_id)

    async def _find(self, intent: Intent, rules: KeyRules) -> Placement | None:
        """Return the order that the intent has; none where it needs a new one."""
        entry = await self._keys.entry(intent.account_id, intent.operation, intent.key)
        if entry is None or await rules.may_reuse_key(intent, entry):
            return None
        return Placement(entry.order_id, entry, replayed=True)


def order_request(body: Mapping[str, Any]) -> OrderRequest:
    """Convert a body to typed fields; raises InvalidField for the first field of another type."""
    require_numbers(body, _AMOUNTS)
    return converted(body, OrderRequest)
