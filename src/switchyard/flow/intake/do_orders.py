"""The Do-Layer's desk: place an order, wait for what the broker makes of it, answer the same to every repeat."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import structlog

from switchyard.domain import decisions
from switchyard.domain.canonical import digest
from switchyard.domain.changes import Change, Committed
from switchyard.domain.do_order import (
    DO_ORDER,
    DoOrderRequest,
    ExecFailure,
    ExecResult,
    as_order,
    do_order_request,
    exec_failure,
    exec_result,
    result_digest,
)
from switchyard.domain.errors import (
    BrokerFailed,
    IdempotencyConflict,
    KeyMismatch,
    OutcomeUnknown,
    QueueDelayed,
    QueueFull,
    SwitchyardError,
    Unavailable,
)
from switchyard.domain.events import JournalEvent, encode
from switchyard.domain.idempotency import KeyEntry, checked_key
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order, is_proven_unsent
from switchyard.domain.outbox import OrderState
from switchyard.flow.decide import Commit, decide
from switchyard.flow.intake.duplicates import DuplicateWatch
from switchyard.flow.intake.key_cache import KeyCache
from switchyard.flow.intake.placing import Intent, OrderWriter
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.risk.constraints import Constraints
from switchyard.flow.routing.route import Routes
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.keys import KeyStore
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# The broker's time-outs by time in force, and a little for the way there and back.
PATIENCE_SECONDS = {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0}
MARGIN_SECONDS = 0.5
# News come by themselves; this is for the case that one got lost.
LOOK_SECONDS = 0.5
# Each fill is two events; an order in more parts than this shows its newest ones.
EVENTS_MAX = 1_000


class DoOrderResult(msgspec.Struct, frozen=True):
    """The answer's status and body; `replayed` where an earlier request had placed the order."""

    http_status: int
    body: bytes
    result_status: str
    reason_code: str | None = None
    replayed: bool = False


class DoDesk:
    """`POST /do/order` over the same keys, journal and outbox as every other order."""

    def __init__(
        self,
        *,
        journal: Journal,
        commit: Commit,
        queries: Queries,
        keys: KeyStore,
        placing: OrderWriter,
        catalogue: Catalogue,
        routes: Routes,
        constraints: Constraints,
        remembered: KeyCache,
        duplicates: DuplicateWatch,
        hub: StreamHub,
        clock: Clock,
        metrics: Metrics,
        key_ttl: timedelta,
    ) -> None:
        self._journal = journal
        self._commit = commit
        self._queries = queries
        self._keys = keys
        self._writer = placing
        self._catalogue = catalogue
        self._routes = routes
        self._constraints = constraints
        self._key_cache = remembered
        self._duplicates = duplicates
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._key_ttl = key_ttl

    async def place(self, account: AccountId, body: Mapping[str, Any], header_key: str | None) -> DoOrderResult:
        """Place the order once, however often this is called, and answer with what is known of it."""
        request = do_order_request(body)
        if header_key != request.idempotency_key:
            raise KeyMismatch
        intent = Intent(
            account_id=account,
            operation=DO_ORDER,
            key=checked_key(header_key),
            digest=digest(body),
            created_at=self._clock.now(),
            ttl=self._key_ttl,
        )
        known = await self._key_cache.find(account, DO_ORDER, intent.key, intent.digest)
        if known is not None and known.response is not None and known.http_status is not None:
            self._duplicates.found(account, intent.key, known.order_id)
            return _key_cache(known.http_status, known.response)
        taken = await self._keys.entry(account, DO_ORDER, intent.key)
        if taken is not None and not await self._begins_anew(intent, taken):
            return await self._repeat(intent, request, taken)
        return await self._first(intent, request)

    async def _first(self, intent: Intent, request: DoOrderRequest) -> DoOrderResult:
        order_request = as_order(request, self._catalogue)
        try:
            to = self._routes.open_way(order_request)
        except QueueDelayed as error:
            raise BrokerFailed(str(error)) from error
        await self._constraints.check(intent.account_id, request, to.venue)
        begun = self._clock.monotonic()
        placed = await self._writer.place_once(intent, order_request, to, partial(self._begins_anew, intent))
        assert placed.entry is not None, "it has a key"
        if placed.replayed:
            return await self._repeat(intent, request, placed.entry)
        self._duplicates.judge(placed)
        try:
            order = await self._outcome(placed.order_id, request)
            self._metrics.broker_latency.observe((self._clock.monotonic() - begun) * 1000)
            return await self._answer(placed.entry, request, order, is_first=True)
        except Unavailable as error:
            # The order is written, but what became of it cannot be read: 'not taken' would be untrue.
            raise OutcomeUnknown(str(error)) from error

    async def _repeat(self, intent: Intent, request: DoOrderRequest, taken: KeyEntry) -> DoOrderResult:
        if taken.request_digest != intent.digest:
            self._metrics.do_conflicts.inc()
            raise IdempotencyConflict(intent.key)
        self._duplicates.found(intent.account_id, intent.key, taken.order_id)
        order = await self._ended_if_late(await self._order(taken.order_id))
        return await self._answer(taken, request, order, is_first=False)

    async def _begins_anew(self, intent: Intent, taken: KeyEntry) -> bool:
        """Whether the key is free again: for the same request when its order never left, for any after its time."""
        order = await self._order(taken.order_id)
        if self._has_expired(taken) and is_final(order.status):
            return True
        return taken.request_digest == intent.digest and is_proven_unsent(order)

    def _has_expired(self, taken: KeyEntry) -> bool:
        return self._clock.now() >= taken.expires_at

    async def _outcome(self, order_id: OrderId, request: DoOrderRequest) -> Order:
        """The order once the broker's word is known, or as it stands when the broker's time is over."""
        ends_at = self._clock.monotonic() + PATIENCE_SECONDS[request.time_in_force] + MARGIN_SECONDS
        try:
            async with self._hub.subscribe("order", order_id) as subscription:
                order = await self._order(order_id)
                async with contextlib.aclosing(subscription.batches(LOOK_SECONDS)) as news:
                    while not _is_known(order) and self._clock.monotonic() < ends_at:
                        if await anext(news, None) is None:
                            break  # the streams are closing, and this process with them
                        order = await self._order(order_id)
        except QueueFull:
            order = await self._order(order_id)  # too many wait already: this one is told what is known now
        return await self._ended_if_late(order)

    async def _ended_if_late(self, order: Order) -> Order:
        """The order, ended where it was not sent in time and nobody says so: no worker lives, or its venue is away."""

        def decision(state: OrderState) -> Change | None:
            if not self._is_late(state.order):
                return None  # a sender was faster
            return decisions.record_expired(state, state.row("new", 1), "BROKER_DOWN", self._clock.now())

        if not self._is_late(order):
            return order
        change = await decide(self._journal, self._commit, order.order_id, decision)
        return await self._order(order.order_id) if change is None else change.orders[0]

    def _is_late(self, order: Order) -> bool:
        return order.status == "ACCEPTED" and decisions.is_past_deadline(order, self._clock.now())

    async def _order(self, order_id: OrderId) -> Order:
        order = await self._queries.order(order_id)
        assert order is not None, "a key and its order are written together, and orders are never removed"
        return order

    async def _answer(self, entry: KeyEntry, request: DoOrderRequest, order: Order, *, is_first: bool) -> DoOrderResult:
        result = exec_failure(request, order, is_first=is_first) or await self._result(request, order)
        body = encode(result)
        if is_final(order.status):
            body = await self._kept(entry, order, result, body)
        if isinstance(result, ExecFailure):
            return DoOrderResult(result.http_status, body, result.error, order.reason, replayed=not is_first)
        return DoOrderResult(201 if is_first else 200, body, result.status, order.reason, replayed=not is_first)

    async def _result(self, request: DoOrderRequest, order: Order) -> ExecResult:
        events: Sequence[JournalEvent] = ()
        if order.filled_qty:
            events = await self._queries.last_events(order_id=order.order_id, limit=EVENTS_MAX)
        return exec_result(request, order, events, self._catalogue.find(order.symbol))

    async def _kept(self, entry: KeyEntry, order: Order, result: ExecResult | ExecFailure, body: bytes) -> bytes:
        """The final answer as every repeat gets it; written again where a late fill has made it another one."""
        says = result_digest(result)
        if entry.result_digest != says:
            http_status = result.http_status if isinstance(result, ExecFailure) else 200
            change = decisions.record_result(entry, http_status, body.decode(), says)
            try:
                outcome = await self._commit(change)
            except SwitchyardError:
                return body  # the answer stands; the next repeat writes it
            if not isinstance(outcome, Committed):
                return body  # somebody was faster, with the same answer
            entry = change.keys[0]
        assert entry.response_payload_json is not None, "an answer has a digest and a body"
        if order.status == "FILLED":  # any other end may still be followed by a fill, which the cache would not show
            self._key_cache.keep(
                entry,
                "completed",
                now=self._clock.now(),
                http_status=entry.http_status,
                response=entry.response_payload_json,
            )
        return entry.response_payload_json.encode()


def _is_known(order: Order) -> bool:
    """Whether the broker's word is known; an order that may rest is, once the broker has it."""
    if is_final(order.status) or order.status == "UNKNOWN":
        return True
    return order.time_in_force == "GTC" and order.status not in ("ACCEPTED", "SENDING")


def _key_cache(http_status: int, body: str) -> DoOrderResult:
    """A final answer as it was kept."""
    shown = msgspec.json.decode(body, type=dict[str, Any])
    return DoOrderResult(http_status, body.encode(), shown["status"], shown["reason_code"], replayed=True)
