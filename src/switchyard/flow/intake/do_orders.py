"""`POST /do/order`: place an order, wait for the broker's outcome, and give every repeat the same answer.

Reads orders and events; places through `OrderIntake`, and writes the final answer to the cache. `flow/results.py`
writes it to the journal with the end of the order.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import (
    BrokerFailed,
    IdempotencyConflict,
    KeyMismatch,
    QueueDelayed,
    QueueFull,
)
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import JournalEvent, encode
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.do_order import (
    DoOrderRequest,
    ExecFailure,
    ExecResult,
    as_order,
    do_order_request,
    exec_failure,
    exec_result,
    request_digest,
    result_digest,
)
from switchyard.domain.orders.keys import DO_ORDER, KeyEntry, checked_key, is_lost_key_alive
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, is_proven_unsent
from switchyard.domain.risk.checks import OrderContext
from switchyard.flow.commit.sequencer import Commit, after_commit, decide
from switchyard.flow.intake.order_intake import IdempotentRequest, KeyCache, OrderIntake, Placement
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.results import EVENTS_MAX
from switchyard.flow.risk.pre_trade import Constraints
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

# The specification's broker time-outs by time in force.
BROKER_SECONDS_MAX = {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0}
# Added to the broker's time-out for the queue, the commit and the report.
MARGIN_SECONDS = 0.5
# The stream wakes the request; polling at this interval covers a lost wake-up.
POLL_SECONDS = 0.5


class BrokerOutcome:
    """Reads an order once its outcome at the broker is known."""

    def __init__(
        self,
        *,
        journal: Journal,
        commit: Commit,
        queries: Queries,
        hub: StreamHub,
        clock: Clock,
        key_ttl: timedelta,
        restored_at: datetime | None,
    ) -> None:
        """Until every key from before a restore has expired, only a worker expires orders.

        After a restore, an order that was not sent from here may have been executed by the lost history under the same
        client order id. A worker knows that, once it has read the venue.
        """
        self._journal = journal
        self._commit = commit
        self._queries = queries
        self._hub = hub
        self._clock = clock
        self._key_ttl = key_ttl
        self._restored_at = restored_at

    async def order(self, order_id: OrderId) -> Order:
        """Return the order as it is now."""
        order = await self._queries.order(order_id)
        assert order is not None, "a key and its order are written together, and orders are never removed"
        return order

    async def state(self, order_id: OrderId) -> OrderState:
        """Return the order with its outbox rows."""
        return (await self._journal.load([order_id]))[order_id]

    async def wait(self, order_id: OrderId, time_in_force: str) -> Order:
        """Return the order when the broker's outcome is known, or when the broker's time is over."""
        deadline = self._clock.monotonic() + BROKER_SECONDS_MAX[time_in_force] + MARGIN_SECONDS
        try:
            async with self._hub.subscribe("order", order_id, urgent=True) as subscription:
                order = await self.order(order_id)
                async with contextlib.aclosing(subscription.batches(POLL_SECONDS)) as batches:
                    while not _is_known(order) and self._clock.monotonic() < deadline:
                        if await anext(batches, None) is None:
                            break  # the hub closes because the process stops
                        order = await self.order(order_id)
        except QueueFull:
            order = await self.order(order_id)  # too many subscribers: answer with the current state
        return await self.expired_if_late(order)

    async def expired_if_late(self, order: Order) -> Order:
        """Expire an order that was not sent before its deadline; returns the order's new state.

        Usually the worker does this. Without a live worker, or with the venue down, the request has to, so that its
        key can be reused.
        """

        def decision(state: OrderState) -> Change | None:
            if not self._is_late(state.order):
                return None  # a worker has sent or ended the order meanwhile
            return decisions.record_expired(state, state.row("new", 1), "BROKER_DOWN", self._clock.now())

        if not self._is_late(order):
            return order
        change = await decide(self._journal, self._commit, order.order_id, decision)
        return await self.order(order.order_id) if change is None else change.orders[0]

    def _is_late(self, order: Order) -> bool:
        now = self._clock.now()
        if is_lost_key_alive(self._restored_at, self._key_ttl, now, self._clock.jumped_at):
            return False
        return order.status == "ACCEPTED" and decisions.is_past_deadline(order, now)


def _is_known(order: Order) -> bool:
    """Whether the broker's outcome is known; for a GTC order, whether the broker has the order."""
    if is_final(order.status) or order.status == "UNKNOWN":
        return True
    return order.time_in_force == "GTC" and order.status not in ("ACCEPTED", "SENDING")


class DoOrderResult(msgspec.Struct, frozen=True):
    """The HTTP status and body of the answer, and what the log line and the metrics need."""

    http_status: int
    body: bytes
    result_status: str
    reason_code: str | None = None
    replayed: bool = False
    """Whether an earlier request placed the order."""
    order_id: OrderId | None = None


class DoOrderService:
    """Places orders of `/do/order` and answers with the broker's outcome; the `KeyRules` of its keys."""

    def __init__(
        self,
        *,
        intake: OrderIntake,
        outcome: BrokerOutcome,
        constraints: Constraints,
        catalogue: Catalogue,
        queries: Queries,
        key_cache: KeyCache,
        clock: Clock,
        metrics: Metrics,
        key_ttl: timedelta,
        restored_at: datetime | None,
    ) -> None:
        self._intake = intake
        self._outcome = outcome
        self._constraints = constraints
        self._catalogue = catalogue
        self._queries = queries
        self._key_cache = key_cache
        self._clock = clock
        self._metrics = metrics
        self._key_ttl = key_ttl
        self._restored_at = restored_at

    async def place(self, account: AccountId, body: Mapping[str, Any], header_key: str | None) -> DoOrderResult:
        """Place the order once, however often this is called, and answer with its current result."""
        started = self._clock.monotonic()
        request = do_order_request(body)
        if header_key != request.idempotency_key:
            raise KeyMismatch
        intent = IdempotentRequest(
            account_id=account,
            operation=DO_ORDER,
            key=checked_key(header_key),
            digest=request_digest(request),
            created_at=self._clock.now(),
            ttl=self._key_ttl,
            trace_id=request.trace_id,
            requested_at=request.requested_at,
        )
        placement = await self._placement(intent, request)
        if placement.cached is not None:
            return _cached_result(placement.cached)
        assert placement.entry is not None, "a placement that is not from the cache has its key's row"
        with after_commit():
            if placement.violation is not None:
                return await self._answer(placement.entry, await self._outcome.order(placement.order_id), is_first=True)
            if placement.replayed:
                order = await self._outcome.expired_if_late(await self._outcome.order(placement.order_id))
                return await self._answer(placement.entry, order, is_first=False)
            order = await self._outcome.wait(placement.order_id, request.time_in_force)
            self._metrics.broker_latency.observe((self._clock.monotonic() - started) * 1000)
            return await self._answer(placement.entry, order, is_first=True)

    async def _placement(self, intent: IdempotentRequest, request: DoOrderRequest) -> Placement:
        prepare = partial(self._prepare, intent.account_id, request)
        try:
            # Clients repeat a request to poll its result, and a repeat must not depend on today's catalogue, quotes or
            # constraints: so the key store is asked first.
            return await self._intake.place(intent, prepare, self, lookup_first=True)
        except QueueDelayed as error:
            raise BrokerFailed(str(error)) from error
        except IdempotencyConflict:
            self._metrics.do_conflicts.inc()
            raise

    async def _prepare(self, account: AccountId, request: DoOrderRequest) -> OrderContext:
        context = self._intake.routed(account, as_order(request, self._catalogue))
        await self._constraints.check(account, request, context.venue)
        return context

    def may_answer_from_cache(self, intent: IdempotentRequest, cached: CacheEntry) -> bool:
        """Where the entry holds a final answer."""
        return cached.response is not None and cached.http_status is not None

    async def may_reuse_key(self, intent: IdempotentRequest, entry: KeyEntry) -> bool:
        """For the same request if its order was provably never sent; for any request after expiry and a final order."""
        state = await self._outcome.state(entry.order_id)
        now, jumped_at = self._clock.now(), self._clock.jumped_at
        if now >= entry.expiry(jumped_at) and is_final(state.order.status):
            return True
        # Another client order id could execute the intent of a lost key again.
        may_be_lost = is_lost_key_alive(self._restored_at, self._key_ttl, now, jumped_at)
        return entry.request_digest == intent.digest and is_proven_unsent(state) and not may_be_lost

    async def _answer(self, entry: KeyEntry, order: Order, *, is_first: bool) -> DoOrderResult:
        result = exec_failure(order, is_first=is_first) or await self._exec_result(order)
        body = encode(result)
        if is_final(order.status) and entry.result_digest == result_digest(result):
            # Stored in the commit that ended the order; another version may write the same result differently.
            assert entry.response_payload_json is not None, "an entry with a digest has a body"
            body = entry.response_payload_json.encode()
        if isinstance(result, ExecFailure):
            if is_final(order.status):
                self._key_cache.keep(entry, "failed", now=self._clock.now(), error=result.error)
            return DoOrderResult(
                result.http_status, body, result.error, result.reason_code, not is_first, order.order_id
            )
        if order.status == "FILLED":  # in any other final status a late fill could still change the answer
            now = self._clock.now()
            self._key_cache.keep(entry, "completed", now=now, http_status=200, response=body.decode())
        status = 201 if is_first else 200
        return DoOrderResult(status, body, result.status, order.reason, not is_first, order.order_id)

    async def _exec_result(self, order: Order) -> ExecResult:
        events: Sequence[JournalEvent] = ()
        if order.filled_qty:
            events = await self._queries.last_events(order_id=order.order_id, limit=EVENTS_MAX)
        return exec_result(order, events, self._catalogue.find(order.symbol))


def _cached_result(cached: CacheEntry) -> DoOrderResult:
    """Return a final answer from the cache."""
    assert cached.http_status is not None and cached.response is not None, "checked by may_answer_from_cache"
    result = msgspec.json.decode(cached.response, type=dict[str, Any])
    return DoOrderResult(
        cached.http_status, cached.response.encode(), result["status"], result["reason_code"], True, cached.order_id
    )
