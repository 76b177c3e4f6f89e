"""From a request to its order: the one path for `/orders`, closes, derived keys and `/do/order`.

Look in the cache, route, judge the risk, wait for the admission window, and commit; a repeat is found by the commit.
Reads the cache, the key store and rejected orders; writes orders with their keys. The commit decides which request owns
a key, so two requests with one key cannot both place an order. What differs between the operations is their `KeyRules`.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec
import structlog

from switchyard.domain import decisions
from switchyard.domain.errors import (
    CredentialPaused,
    IdempotencyConflict,
    InvalidField,
    JournalUnavailable,
    NotFound,
    PositionClosing,
    PositionMoved,
    QueueDelayed,
    RiskRejected,
)
from switchyard.domain.ids import (
    ULID_RANDOM_BITS,
    AccountId,
    IdForm,
    OrderId,
    VenueClientOrderId,
    order_id,
    venue_client_order_id,
)
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.journal.lines import stamp
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.closing import CloseRequest, close_request, closing_order
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import OrderRequest, checked
from switchyard.domain.risk.checks import (
    CheckResult,
    Closes,
    DryRun,
    OrderContext,
    Violation,
    dry_run_of,
    killed,
    violation_of,
)
from switchyard.domain.values import converted, require_numbers
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.health.venues import VenueChoice
from switchyard.flow.risk.contents import RecentContents
from switchyard.flow.risk.limit_claims import LimitClaim, LimitClaims
from switchyard.flow.risk.pre_trade import OrderRate, PreTradeRisk
from switchyard.flow.routing.window import AdmissionWindow
from switchyard.ports.cache import Cache, CacheEntry, CacheStatus
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.journal import Journal
from switchyard.ports.queries import KeyStore
from switchyard.ports.quotes import Quotes
from switchyard.telemetry.metrics import Metrics


class IdempotentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a request: the same account, operation and key mean the same order."""

    account_id: AccountId
    operation: str
    key: str
    """Empty for a request without a key: each of those is an order of its own."""
    digest: str
    """Of the request's content: the same key with another digest is a conflict."""
    created_at: datetime
    ttl: timedelta
    trace_id: str | None = None
    requested_at: datetime | None = None


class Placement(msgspec.Struct, frozen=True):
    """The order that belongs to a request."""

    order_id: OrderId
    entry: KeyEntry | None = None
    """The key's row; none for a request without a key and for an answer from the cache."""
    replayed: bool = False
    """Whether an earlier request placed the order; that request's digest may differ."""
    previous: KeyEntry | None = None
    """The row that this placement replaced, if the key is reused and its row still existed."""
    cached: CacheEntry | None = None
    """The cache entry that answered the request; none where the key store was asked."""
    violation: Violation | None = None
    """Why the new order was rejected; of an earlier order `OrderIntake.rejection` tells."""

    @property
    def reuses_expired_key(self) -> bool:
        """Whether this is a new order under a key whose earlier order was older than the key's time to live."""
        if self.replayed or self.entry is None or self.entry.generation == 0:
            return False
        return self.previous is None or self.previous.expires_at <= self.entry.created_at


class KeyRules(Protocol):
    """How one operation treats its keys."""

    def may_answer_from_cache(self, request: IdempotentRequest, cached: CacheEntry) -> bool:
        """Whether this cache entry answers the request without a look in the key store."""
        ...

    async def may_reuse_key(self, request: IdempotentRequest, entry: KeyEntry) -> bool:
        """Whether the key may start a new generation, with a new order, although `entry` holds it."""
        ...


class KeyCache:
    """Lookups by request and writes by key entry; without a cache every lookup is a miss."""

    def __init__(self, cache: Cache | None, ttl: timedelta, journal: Journal) -> None:
        self._cache = cache
        self._ttl = ttl
        self._journal = journal

    async def find(self, request: IdempotentRequest) -> CacheEntry | None:
        """Return the entry of the same request; the same key with another digest is a miss, and so is a failure.

        A request that failed may be tried again, and a late fill can contradict its failure: the key store decides.
        A hit is an order that a failover does not lose, like every answer of the key store.
        """
        if self._cache is None:
            return None
        entry = await self._cache.get(request.account_id, request.operation, request.key)
        if entry is None or entry.status == "failed" or entry.request_digest != request.digest:
            return None
        await self._journal.confirm()
        return entry if entry.history == self._journal.history else None

    def keep(
        self,
        entry: KeyEntry,
        status: CacheStatus,
        *,
        now: datetime,
        http_status: int | None = None,
        response: str | None = None,
        error: str | None = None,
    ) -> None:
        """Copy the key store's entry into the cache, in the background."""
        if self._cache is None:
            return
        self._cache.put(
            CacheEntry(
                account_id=entry.account_id,
                operation=entry.operation,
                idempotency_key=entry.idempotency_key,
                generation=entry.generation,
                request_digest=entry.request_digest,
                order_id=entry.order_id,
                request_id=request_id(entry.order_id),
                status=status,
                http_status=http_status,
                response=response,
                history=self._journal.history,
                error=error,
                created_at=entry.created_at,
                expires_at=min(entry.expires_at, now + self._ttl),
            )
        )


def request_id(order_id: OrderId) -> str:
    """Return the id of the request that placed an order; each order has one such request."""
    return "req_" + order_id.removeprefix("ord_")


log = structlog.get_logger()

WINDOW_SECONDS = 300
# The window moves in steps of this length, so it covers the last 290 to 300 seconds.
SLOT_SECONDS = 10
SLOTS = WINDOW_SECONDS // SLOT_SECONDS
# With fewer requests a rate says nothing: at the default threshold of 5 %, one repeated request would be an alarm.
REQUESTS_MIN = 20


class HighDuplicateRate(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an alarm: the rate is above the threshold."""

    duplicates: int
    orders: int
    threshold: float


class DuplicateRate:
    """Duplicates divided by orders placed in the last 5 minutes, in a fixed amount of memory."""

    def __init__(self, threshold: float, clock: Clock) -> None:
        self._threshold = threshold
        self._clock = clock
        # A ring of counts: slot number n is at index n modulo SLOTS.
        self._orders = [0] * SLOTS
        self._duplicates = [0] * SLOTS
        # Monotonic, so that a step of the wall clock neither drops duplicates nor counts old ones again.
        self._slot = int(clock.monotonic() // SLOT_SECONDS)
        self._alarm_slot: int | None = None

    def record(self, *, is_duplicate: bool) -> HighDuplicateRate | None:
        """Count a request; returns an alarm if the rate is too high, at most one per window."""
        self._clear_old_slots()
        index = self._slot % SLOTS
        self._orders[index] += not is_duplicate
        self._duplicates[index] += is_duplicate
        if not is_duplicate:
            return None  # a new order can only lower the rate
        if self._alarm_slot is not None and self._slot - self._alarm_slot < SLOTS:
            return None
        orders, duplicates = sum(self._orders), sum(self._duplicates)
        if orders + duplicates < REQUESTS_MIN or self.rate() <= self._threshold:
            return None
        self._alarm_slot = self._slot
        return HighDuplicateRate(duplicates=duplicates, orders=orders, threshold=self._threshold)

    def rate(self) -> float:
        """Return the current rate; infinite if there are duplicates only, as from a client that repeats without end."""
        self._clear_old_slots()
        orders, duplicates = sum(self._orders), sum(self._duplicates)
        if not orders:
            return math.inf if duplicates else 0.0
        return duplicates / orders

    def _clear_old_slots(self) -> None:
        """Set the slots to zero that have left the window since the last call."""
        current = int(self._clock.monotonic() // SLOT_SECONDS)
        if current == self._slot:
            return
        for slot in range(max(self._slot + 1, current - SLOTS + 1), current + 1):
            self._orders[slot % SLOTS] = self._duplicates[slot % SLOTS] = 0
        self._slot = current


class DuplicateWatch:
    """Counts placements in the metrics and logs duplicates."""

    def __init__(self, metrics: Metrics, *, rate: DuplicateRate | None, logs: bool) -> None:
        """Without `rate` there is no alarm; `logs` enables a log line per duplicate."""
        self._metrics = metrics
        self._rate = rate
        self._logs = logs

    def count_new_order(self) -> None:
        """Count a new order."""
        self._metrics.accepted.inc()
        self._metrics.placed.inc()
        if self._rate is not None:
            self._rate.record(is_duplicate=False)

    def count(self, placement: Placement) -> None:
        """Count a request: a duplicate or a new order, perhaps under a reused key."""
        entry = placement.entry
        if entry is None:  # a request without a key
            self.count_new_order()
            return
        if placement.replayed:
            self.count_duplicate(entry.account_id, entry.idempotency_key, entry.order_id)
            return
        self.count_new_order()
        if entry.generation and placement.reuses_expired_key:
            # Not a duplicate, but a client that reuses keys may have a defect.
            log.warning("expired_key_reused", account_id=entry.account_id, idempotency_key=entry.idempotency_key)
            self._metrics.expired_reuse.inc()

    def count_duplicate(self, account: AccountId, key: str, order_id: OrderId) -> None:
        """Count a repeat of an earlier request, for which no second order was placed."""
        self._metrics.replayed.inc()
        self._metrics.prevented.inc()
        if self._logs:
            log.info("duplicate_prevented", account_id=account, idempotency_key=key, order_id=order_id)
        alarm = self._rate.record(is_duplicate=True) if self._rate is not None else None
        if alarm is not None:
            log.error(
                "duplicate_rate_high",
                duplicates=alarm.duplicates,
                orders=alarm.orders,
                threshold=alarm.threshold,
            )


NOTHING_TO_CLOSE = (NotFound, PositionClosing, PositionMoved)
"""Why no order was placed or stored for a request to close a position."""
_AMOUNTS = ("qty", "price", "stopPrice", "displayQty")
# The first attempt, and one more for each concurrent request that changed the key in between.
ATTEMPTS_MAX = 8
# Generations of a key that are looked up in one query after the key's row was removed.
GENERATIONS_PAGE = 64
# A search of this many generations takes about 1,600 queries; no client reuses a key that often.
GENERATIONS_MAX = 100_000

Prepare = Callable[[], Awaitable[OrderContext]]
"""Decides, checks and routes a new order; called only if the request may need one."""

Offer = Callable[[Change], Awaitable[Outcome]]
"""Commits the change of a request, or rejects it at once if the queue is at its bound."""


class OrderIntake:
    """Turns requests into orders; a request gets one order however often it is repeated."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        choice: VenueChoice,
        quotes: Quotes,
        risk: PreTradeRisk,
        limits: LimitClaims,
        rate: OrderRate,
        contents: RecentContents,
        kills: ActiveKills,
        window: AdmissionWindow,
        journal: Journal,
        keys: KeyStore,
        key_cache: KeyCache,
        duplicates: DuplicateWatch,
        offer: Offer,
        clock: Clock,
        randomness: Randomness,
        tag: str,
    ) -> None:
        self._catalogue = catalogue
        self._choice = choice
        self._quotes = quotes
        self._risk = risk
        self._limits = limits
        self._rate = rate
        self._contents = contents
        self._kills = kills
        self._window = window
        self._journal = journal
        self._keys = keys
        self._key_cache = key_cache
        self._duplicates = duplicates
        self._offer = offer
        self._clock = clock
        self._randomness = randomness
        self._tag = tag

    def checked_order(self, body: Mapping[str, Any]) -> OrderRequest:
        """Parse a body of `POST /orders` and check it against the catalogue."""
        return checked(order_request(body), self._catalogue)

    def routed(self, account: AccountId, order: OrderRequest, closes: Closes | None = None) -> OrderContext:
        """Route a checked order."""
        route = self._choice.route_of(order.symbol, account)
        venue, chosen = route.venues[0], None
        if len(route.venues) > 1:
            chosen = self._choice.among(order, route)
            venue = chosen.candidates[0].venue
            if not route.by_quality and venue == route.venues[0]:
                chosen = None  # nothing to explain: the preferred venue is healthy
        return OrderContext(
            account_id=account,
            order=order,
            instrument=self._catalogue.find(order.symbol),
            venue=venue,
            quote=self._quotes.quote(venue, order.symbol),
            route=chosen,
            closes=closes,
        )

    def checked_close(self, account: AccountId, symbol: str, body: Mapping[str, Any]) -> CloseRequest:
        """Parse a body of `POST /positions/{symbol}/close` and check it against the catalogue."""
        return close_request(account, symbol, body, self._catalogue)

    async def routed_close(self, account: AccountId, request: CloseRequest, *, exactly: bool = True) -> OrderContext:
        """Decide the order that closes the position and route it; its commit checks that the position still fits.

        Without `exactly` a whole close need not fit a position that has grown since.
        """
        here = await self._limits.exposure_of(account, request.order.symbol)
        order = checked(closing_order(request, here), self._catalogue)
        is_whole = exactly and request.qty is None
        return self.routed(account, order, "whole" if is_whole else "part")

    async def place(
        self, request: IdempotentRequest, order: OrderRequest | Prepare, rules: KeyRules, *, lookup_first: bool = False
    ) -> Placement:
        """Return the request's order; place it, or store it as rejected, if there is none.

        Without `lookup_first` a request that misses the cache goes straight to the commit, which finds an existing
        key too. That is the cheapest way for new orders. With it, the key store is asked before `order` is decided.
        Raises IdempotencyConflict if the key belongs to another request, and if a new order is needed, QueueDelayed if
        its venue's queue is too slow and RiskRejected if the account is over its rate.
        """
        account = request.account_id
        if request.key:
            cached = await self._key_cache.find(request)
            if cached is not None and rules.may_answer_from_cache(request, cached):
                self._duplicates.count_duplicate(account, request.key, cached.order_id)
                return Placement(cached.order_id, replayed=True, cached=cached)
            if lookup_first and (found := await self._find(request, rules)) is not None:
                return self._counted(request, found)
        if isinstance(order, OrderRequest) and _has_expired(order, request.created_at):
            found = await self._find(request, rules)  # the first request came in time
            if found is None:
                raise _expired(order, request.created_at)
            return self._counted(request, found)
        exceeded = await self._rate.take(account)
        if exceeded is not None:
            found = await self._find(request, rules)  # a repeat needs no token
            if found is None:
                self._risk.note_rejection(account, None, exceeded)
                raise RiskRejected(exceeded.reason, exceeded.detail, retry_after=exceeded.retry_after)
            return self._counted(request, found)
        try:
            context = self.routed(account, order) if isinstance(order, OrderRequest) else await order()
            placement = await self._place(request, context, rules)
        except NOTHING_TO_CLOSE:
            await self._rate.put_back(account)
            raise
        if placement.replayed:
            await self._rate.put_back(account)
        return self._counted(request, placement)

    async def dry_run(self, account: AccountId, order: OrderRequest) -> DryRun:
        """Return what every check says about the order; stores nothing and takes no token."""
        now = self._clock.now()
        if _has_expired(order, now):
            raise _expired(order, now)
        context = self.routed(account, order)
        # For the dry run only: of a real order the commit itself decides whether a kill covers it.
        kill = await self._kills.covering_new(account, order.strategy, context.venue, order.symbol)
        results = [
            CheckResult("KILL_SWITCH", None if kill is None else killed(kill)),
            *await self._rate.checks(account),
            *await self._limits.waived(context, self._risk.checks(context)),
            *await self._limits.checks(context, now),
            *await self._contents.checks(account, order),
        ]
        return dry_run_of(context, results)

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

    async def _place(self, request: IdempotentRequest, context: OrderContext, rules: KeyRules) -> Placement:
        """Judge the order, wait for the admission window, and commit it."""
        account, venue, time_in_force = context.account_id, context.venue, context.order.time_in_force
        claim = await self._limits.claim_of(context, self._risk.judge(context))
        if self._choice.pause_of(venue) is not None:
            found = await self._find(request, rules)
            if found is None:
                raise CredentialPaused(venue)
            return found
        if claim.violation is not None:  # it does not wait for the others, because it is never sent
            return await self._store(request, claim, rules)
        if not self._window.try_enter(venue, account, time_in_force):
            try:
                await self._window.enter(venue, account, time_in_force)
            except QueueDelayed:
                # A repeat needs no room, so it is answered even while new orders are rejected.
                found = await self._find(request, rules)
                if found is None:
                    raise
                return found
            # An order's send deadline counts from its acceptance.
            request = msgspec.structs.replace(request, created_at=self._clock.now())
        try:
            if not self._contents.is_on:
                return await self._store(request, claim, rules)
            owner = f"{request.operation}:{request.key}" if request.key else ""
            async with self._contents.claimed(account, context.order, owner) as content:
                placement = await self._store(request, claim.rejected(content.violation), rules)
                content.is_used = not placement.replayed and placement.violation is None
            return placement
        finally:
            self._window.leave(venue, account)

    async def _store(self, request: IdempotentRequest, claim: LimitClaim, rules: KeyRules) -> Placement:
        """Commit the order, rejected if its claim has a violation, or return the one that the request has."""
        context, now = claim.context, request.created_at
        account, time_in_force = context.account_id, context.order.time_in_force
        generation, version = 0, 1
        id_form = self._choice.id_form(context.order.symbol, context.venue, account)
        entry: KeyEntry | None = None
        previous: KeyEntry | None = None
        for _ in range(ATTEMPTS_MAX):
            new_id = order_id(int(now.timestamp() * 1000), self._randomness.bits(ULID_RANDOM_BITS))
            if request.key:
                entry = KeyEntry(
                    account_id=account,
                    operation=request.operation,
                    idempotency_key=request.key,
                    generation=generation,
                    order_id=new_id,
                    request_digest=request.digest,
                    created_at=now,
                    expires_at=now + request.ttl,
                    version=version,
                )
            outcome = await self._offer(
                decisions.accept(
                    context.order,
                    account=account,
                    order_id=new_id,
                    venue=context.venue,
                    venue_client_order_id=self._client_order_id(request, generation, new_id, id_form),
                    key=entry,
                    quote=context.quote,
                    now=now,
                    trace_id=request.trace_id,
                    requested_at=request.requested_at,
                    violation=claim.violation,
                    terms=claim.terms,
                    claim=self._limits.for_commit(claim, new_id, now),
                    expires_at=self._limits.day_end(now) if time_in_force == "DAY" else context.order.expire_at,
                    route=context.route,
                )
            )
            if isinstance(outcome, Committed):
                return Placement(new_id, entry, previous=previous, violation=claim.violation)
            existing = outcome.key
            if outcome.kill is not None:
                claim = claim.rejected(killed(outcome.kill))
            elif outcome.breach is not None:
                claim = await self._limits.revised(claim, outcome.breach)
            elif existing is not None:
                if not await rules.may_reuse_key(request, existing):
                    return Placement(existing.order_id, existing, replayed=True)
                # After a restore, an order of the key may have a later id than its own.
                generation = await self._first_free_generation(request, existing.generation + 1, id_form)
                version, previous = existing.version + 1, existing
            elif request.key:
                # The key's row was removed, but the client order ids of its earlier orders are taken for good.
                # Or the id is that of another key, with an equal part of the digest.
                generation, version = await self._first_free_generation(request, generation + 1, id_form), 1
            now = self._clock.now()
        raise JournalUnavailable(f"the order was not written in {ATTEMPTS_MAX} attempts: repeat the request")

    def _counted(self, request: IdempotentRequest, placement: Placement) -> Placement:
        """Return the placement of this request, counted; raises IdempotencyConflict."""
        if placement.entry is not None and placement.entry.request_digest != request.digest:
            raise IdempotencyConflict(request.key)
        if placement.violation is None:
            self._duplicates.count(placement)
        else:
            self._risk.note_rejection(request.account_id, placement.order_id, placement.violation)
        return placement

    async def _find(self, request: IdempotentRequest, rules: KeyRules) -> Placement | None:
        """Return the order that the request has; None if it needs a new one."""
        if not request.key:
            return None
        entry = await self._keys.entry(request.account_id, request.operation, request.key)
        if entry is None or await rules.may_reuse_key(request, entry):
            return None
        return Placement(entry.order_id, entry, replayed=True)

    def _client_order_id(
        self, request: IdempotentRequest, generation: int, new_id: OrderId, form: IdForm
    ) -> VenueClientOrderId:
        operation, key = (request.operation, request.key) if request.key else ("", None)
        return venue_client_order_id(self._tag, request.account_id, operation, key, generation, new_id, form)

    async def _first_free_generation(self, request: IdempotentRequest, first: int, form: IdForm) -> int:
        for start in range(first, GENERATIONS_MAX, GENERATIONS_PAGE):
            ids = {
                self._client_order_id(request, number, OrderId(""), form): number
                for number in range(start, start + GENERATIONS_PAGE)
            }
            free = set(ids) - set(await self._journal.load_by_client_order_id(list(ids)))
            if free:
                return min(ids[client_order_id] for client_order_id in free)
        raise JournalUnavailable(f"the key was used {GENERATIONS_MAX} times: send another key")


def _has_expired(order: OrderRequest, now: datetime) -> bool:
    """Whether the end of a GTD order has passed."""
    return order.expire_at is not None and order.expire_at <= now


def _expired(order: OrderRequest, now: datetime) -> InvalidField:
    """The error for an order whose end is not in the future."""
    assert order.expire_at is not None
    return InvalidField("expireAt", f"must be in the future: {stamp(order.expire_at)} is not after {stamp(now)}")


def order_request(body: Mapping[str, Any]) -> OrderRequest:
    """Convert a body to typed fields; raises InvalidField for the first field of another type."""
    require_numbers(body, _AMOUNTS)
    return converted(body, OrderRequest)
